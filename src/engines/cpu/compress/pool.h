// The pooling of some channels of a window, which each instruction set has from pool_rows.h.
#pragma once

#include <smla/context.h>

#include <cstdint>

namespace smla::cpu_compress {

constexpr int64_t kChannels = 8;  // channels are pooled in multiples of 8: whole vectors on every processor

struct Pool {
    const float* const* rows;  // the kv of each row of the window, which its scores follow
    int64_t count, score;      // score: from a row's kv to its scores
    int64_t begin, end;        // channels
    // [D] each: the largest score of a channel, the sum of its weights, that of its weighted kv
    float *peak, *sum, *value;
};

struct PoolKernel {
    const char* name;
    smla_isa isa;
    void (*run)(const Pool& pool);
};

#if defined(__x86_64__)
extern const PoolKernel kPoolAvx2;
#elif defined(__aarch64__)
extern const PoolKernel kPoolNeon;
#endif

}  // namespace smla::cpu_compress
