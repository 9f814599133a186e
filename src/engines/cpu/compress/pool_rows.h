// The pooling of a window, written once for every instruction set; Isa as in lanes.h. Channels are
// independent of each other, so a channel's bits do not depend on how they are cut.
//
// Row after row, twice: peaks first, then weights. Rows are neighbours in memory and are read as they lie;
// with the rows of a few channels at a time, 128 rows of 4 KiB fell on the same sets of the caches (cold 300
// us, 140 this way).
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
