// Pooling of some channels of a window, which each instruction set builds from pool_rows.h.
#pragma once

#include <smla/context.h>

#include <cstdint>

namespace smla::cpu_compress {

constexpr int64_t kChannels = 8;  // tasks pool multiples of 8 channels: whole vectors on every processor

struct Pool {
    const float* const* rows;  // kv of each row of the window, followed by its scores
    int64_t count, score;      // score: distance of a row's scores from its kv
    int64_t begin, end;        // channels
    // [D] each: largest score of a channel, sum of its weights, sum of its weighted kv
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
