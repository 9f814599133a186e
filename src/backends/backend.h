// An attention backend as data, which one file of published/ provides. All backends of a family run the same
// forward (forward/) and stages; backends differ in cache types, metadata, and in the arguments that the
// published backend rejects.
#pragma once

#include "backends/config.h"

#include <memory>
#include <span>
#include <string>

namespace smla {

// A kv_cache_dtype and its cache format.
struct CacheType {
    const char* name;
    smla_format format;
    smla_format nope = SMLA_FORMAT_NONE;     // format without rope channels, if different
    smla_format entries = SMLA_FORMAT_NONE;  // V4.1: format of the compressed cache, if different
    int32_t major = 0;                       // major compute capability that uses `there`
    smla_format there = SMLA_FORMAT_NONE;    // format of both caches on GPUs of `major`
};

// Arguments that the published backend's own gate accepts. This library accepts more; docs/support-matrix.md
// shows both sets.
struct PublishedGate {
    std::span<const smla_dtype> dtypes;
    std::span<const char* const> cache_types;
    std::span<const int32_t> head_sizes;
    int32_t page_multiple = 1;
    bool page_exact = false;                              // whether page sizes must equal page_multiple
    std::span<const int32_t> capabilities;                // major numbers; empty: any GPU
    std::string (*more)(const BackendConfig&) = nullptr;  // returns a further reason, or an empty string
};

// Head counts that the published kernel supports. An engine pads to the smallest of `sizes` that is large
// enough, else to a multiple of the unit.
struct PublishedHeads {
    std::span<const int32_t> sizes{};
    int32_t unit = 1, unit_on_sm100 = 1;
};

class Metadata;
class FieldSet;
// Makes one set of fields and declares them in `metadata`. Returns null if the backend's arguments need no
// such field.
using MakeFieldSet = std::unique_ptr<FieldSet> (*)(Metadata& metadata);

struct Backend {
    const char* name;
    std::span<const char* const> aliases;  // other names of the published backend
    smla_family family;
    std::span<const CacheType> cache_types;  // "auto" first
    uint32_t formats;                        // formats that kv_cache_dtype may also name
    int32_t page_tokens;                     // default
    smla_graph_support graph_support;
    PublishedHeads heads;
    PublishedGate published;
    std::span<const MakeFieldSet> fields;
    int32_t prefill_requests_per_call = 0;  // HYBRID: requests per attend call of prefill; 0: all
};

// Returns the head count that an engine pads to for the published kernel.
int32_t padded_heads(const Backend& backend, const BackendConfig& config);

}  // namespace smla
