// Which caches a layer needs, in which formats, and how many bytes: one table for sessions and for `smla
// capacity`.
#pragma once

#include "formats/format.h"
#include "model/config.h"

#include <smla/plan.h>

#include <vector>

namespace smla {

struct CacheChoice {
    smla_format kv = SMLA_ROW_F32;     // format of KV rows, the window and compressed entries
    smla_format index = SMLA_ROW_F32;  // index keys
    bool f64 = false;                  // f64 activations and compressor state: reference engine
    int32_t page_tokens = 64;  // tokens per KV or index page; a compressed page covers 4 of these, as in vLLM
    float kv_scale = 0;        // required for per-tensor formats; 0 or 1 for others
    smla_writer kv_writer = 0;
};

// A cache group of a layer, named by its SMLA_GROUP_* bit.
struct CacheNeed {
    int32_t group;
    const char* name;
    smla_format format;
    int32_t width;
    int32_t page_rows;       // rows per page
    int64_t tokens_per_row;  // 1, or the compression ratio
    int64_t resident;        // tokens kept before the step's first; 0: all

    int64_t rows(int64_t tokens) const { return tokens / tokens_per_row; }
    // Returns the most pages of a request of `tokens` tokens, with steps of at most `step_tokens`.
    int64_t pages(int64_t tokens, int64_t step_tokens) const;
    size_t page_bytes() const;
    double bytes_per_token() const;  // amortized; 0 for resident groups
};

// Returns the caches of a layer. Throws, naming the option, if a format does not suit the kind of cache or
// the layer's dimensions, or if a scale does not suit the format.
std::vector<CacheNeed> cache_needs(const AttentionConfig& config, int layer, const CacheChoice& choice);

// Both functions return formats for serving the layer, best first, for `auto` and for verify.
std::vector<smla_format> kv_formats_for(const AttentionConfig& config);
std::vector<smla_format> index_formats_for(const AttentionConfig& config);

}  // namespace smla
