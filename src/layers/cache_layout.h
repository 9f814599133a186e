// Which caches a layer needs, in which formats, and how many bytes: one table for sessions and for `smla
// capacity`.
#pragma once

#include "formats/format.h"
#include "model/config.h"

#include <smla/plan.h>

#include <vector>

namespace smla {

struct CacheChoice {
    smla_format kv = SMLA_ROW_F32;     // KV records, window and compressed entries too
    smla_format index = SMLA_ROW_F32;  // index keys
    bool f64 = false;                  // f64 activations, and compressor state: reference engine
    int32_t page_tokens = 64;  // of KV and index pages; V4's compressed pages cover 4 of these, as in vLLM
    float kv_scale = 0;        // required for per-tensor formats; 0 or 1 for others
    smla_writer kv_writer = 0;
};

// One group of a layer's caches (the SMLA_GROUP_* bit says which).
struct CacheNeed {
    int32_t group;
    const char* name;
    smla_format format;
    int32_t width;
    int32_t page_rows;       // rows per page
    int64_t tokens_per_row;  // 1, or the compression ratio
    int64_t resident;        // 0: the whole context; else only this many tokens before the step's first

    int64_t rows(int64_t tokens) const { return tokens / tokens_per_row; }
    // Pages that a request of `tokens` tokens holds at most, with steps of at most `step_tokens`.
    int64_t pages(int64_t tokens, int64_t step_tokens) const;
    size_t page_bytes() const;
    double bytes_per_token() const;  // amortised; 0 for resident groups
};

// The caches of a layer. Refuses, by the option's name, a format that caches of its kind never have or that
// does not fit the layer's dimensions, and a scale that does not go with the format.
std::vector<CacheNeed> cache_needs(const AttentionConfig& config, int layer, const CacheChoice& choice);

// The serving formats of a layer of these dimensions, best first: what `auto` means and what verify tries.
std::vector<smla_format> kv_formats_for(const AttentionConfig& config);
std::vector<smla_format> index_formats_for(const AttentionConfig& config);

}  // namespace smla
