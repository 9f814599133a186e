// What an attention backend is: data, which one file of published/ fills in. Every backend of a family runs
// the same forward (forward/) over the same stages; they differ in cache types, metadata, and in what the
// published backend refuses.
#pragma once

#include "backends/config.h"

#include <memory>
#include <span>
#include <string>

namespace smla {

// A kv_cache_dtype and the record that it stands for.
struct CacheType {
    const char* name;
    smla_format format;
    smla_format nope = SMLA_FORMAT_NONE;     // the record in models without rope channels, if another
    smla_format entries = SMLA_FORMAT_NONE;  // V4.1: the record of the compressed cache, if another
    int32_t major = 0;                       // on GPUs of this major compute capability ...
    smla_format there = SMLA_FORMAT_NONE;    // ... both caches have this record instead
};

// What the published backend's own gate accepts. This library refuses less: docs/support-matrix.md shows
// both.
struct PublishedGate {
    std::span<const smla_dtype> dtypes;
    std::span<const char* const> cache_types;
    std::span<const int32_t> head_sizes;
    int32_t page_multiple = 1;
    bool page_exact = false;                              // page_multiple itself and no other
    std::span<const int32_t> capabilities;                // major; empty: any GPU
    std::string (*more)(const BackendConfig&) = nullptr;  // a further reason, or empty
};

// Head counts that the published kernel supports. An engine pads to the smallest of `sizes` that is large
// enough, else to a multiple of the unit.
struct PublishedHeads {
    std::span<const int32_t> sizes{};
    int32_t unit = 1, unit_on_sm100 = 1;
};

class Metadata;
class FieldSet;
// Makes one set of fields and declares them in `metadata`; null if the backend's arguments need none of them.
using MakeFieldSet = std::unique_ptr<FieldSet> (*)(Metadata& metadata);

struct Backend {
    const char* name;
    std::span<const char* const> aliases;  // other names of the published backend
    smla_family family;
    std::span<const CacheType> cache_types;  // "auto" first
    uint32_t formats;                        // that kv_cache_dtype may also name directly
    int32_t page_tokens;                     // default
    smla_graph_support graph_support;
    PublishedHeads heads;
    PublishedGate published;
    std::span<const MakeFieldSet> fields;
    int32_t prefill_requests_per_call = 0;  // HYBRID: requests per attend call of prefill; 0: all
};

// The head count that an engine pads to for the published kernel.
int32_t padded_heads(const Backend& backend, const BackendConfig& config);

}  // namespace smla
