// Pooling of a window as a template for all instruction sets; for Isa, see lanes.h. A channel's bits do not
// depend on how channels are divided.
//
// Reads the rows in order twice: first for peaks, then for weights. Rows are neighbors in memory. With a few
// channels of all rows at a time, 128 rows of 4 KiB share the same cache sets (cold 300 us instead of 140).
#pragma once

#include "engines/cpu/compress/pool.h"
#include "engines/cpu/lanes.h"

namespace smla::cpu_compress {

template <class Isa>
void pool_rows(const Pool& pool) {
    using Vec = typename Isa::Vec;
    static_assert(kChannels % Isa::lanes == 0);
    const Vec log2e = Isa::broadcast(1.44269504f);
    for (int64_t d = pool.begin; d < pool.end; d += Isa::lanes) {
        Isa::store(pool.peak + d, Isa::broadcast(-__builtin_inff()));
        Isa::store(pool.sum + d, Isa::zero());
        Isa::store(pool.value + d, Isa::zero());
    }
    for (int64_t j = 0; j < pool.count; ++j) {
        const float* const score = pool.rows[j] + pool.score;
        for (int64_t d = pool.begin; d < pool.end; d += Isa::lanes)
            Isa::store(pool.peak + d, Isa::max(Isa::load(score + d), Isa::load(pool.peak + d)));
    }
    for (int64_t j = 0; j < pool.count; ++j) {
        const float *const kv = pool.rows[j], *const score = kv + pool.score;
        for (int64_t d = pool.begin; d < pool.end; d += Isa::lanes) {
            const Vec below = Isa::sub(Isa::load(score + d), Isa::load(pool.peak + d));
            const Vec weight = lanes::exp2_below<Isa>(Isa::mul(below, log2e));
            Isa::store(pool.sum + d, Isa::add(Isa::load(pool.sum + d), weight));
            Isa::store(pool.value + d, Isa::fma(weight, Isa::load(kv + d), Isa::load(pool.value + d)));
        }
    }
}

}  // namespace smla::cpu_compress
