// The passes of select as templates for instruction sets whose vectors have compress(). Isa is a type of
// engines/cpu/lanes.h. select_scalar.cpp does not use them, because without such vectors, loops without
// branches are fastest.
#pragma once

#include "engines/cpu/lanes.h"
#include "engines/cpu/select/kernel.h"

namespace smla {

namespace {

// If at least this many of 64 columns pass, compressing is faster than storing them one by one.
template <class Isa>
constexpr int kDense = 5 * Isa::lanes / 4;

// About one in fifty columns passes, at random, so there is one branch for 64 columns.
template <class Isa>
int64_t filter(const float* values, int64_t n, int32_t first, float floor, float* out, int32_t* columns) {
    const auto least = Isa::broadcast(floor);
    int64_t count = 0, i = 0;
    for (; i + 64 <= n; i += 64) {
        uint64_t pass = 0;
        SMLA_UNROLL
        for (int at = 0; at < 64; at += Isa::lanes)
            pass |= uint64_t(Isa::bits(Isa::reaches(Isa::load(values + i + at), least))) << at;
        if (__builtin_popcountll(pass) >= kDense<Isa>) {
            for (int at = 0; at < 64; at += Isa::lanes)
                count += Isa::compress(uint32_t(pass >> at) & Isa::all, Isa::load(values + i + at),
                                       Isa::iota(first + int32_t(i) + at), out + count, columns + count);
            continue;
        }
        for (; pass != 0; pass &= pass - 1) {
            const int64_t at = i + __builtin_ctzll(pass);
            out[count] = values[at];
            columns[count++] = first + int32_t(at);
        }
    }
    for (; i < n; i += Isa::lanes) {
        const auto lanes = Isa::first_lanes(n - i);
        const auto value = Isa::load_some(lanes, values + i);
        count += Isa::compress(Isa::bits(Isa::reaches(value, least)) & Isa::bits(lanes), value,
                               Isa::iota(first + int32_t(i)), out + count, columns + count);
    }
    return count;
}

template <class Isa>
void rank_keys(const float* values, int64_t n, int32_t* keys) {
    for (int64_t i = 0; i < n; i += Isa::lanes) {
        const auto lanes = Isa::first_lanes(n - i);
        Isa::store_some(lanes, keys + i, Isa::rank_keys(Isa::load_some(lanes, values + i)));
    }
}

template <class Isa>
int64_t count_keys(const int32_t* keys, int64_t n, int32_t least) {
    const auto bound = Isa::broadcast(least);
    decltype(Isa::iota(0)) below[4];  // one count per lane; n is far below 2^31
    for (auto& each : below) each = Isa::broadcast(int32_t(0));
    int64_t i = 0;
    for (; i + 4 * Isa::lanes <= n; i += 4 * Isa::lanes) {
        SMLA_UNROLL
        for (int v = 0; v < 4; ++v)
            below[v] = Isa::count(below[v], Isa::above(bound, Isa::load(keys + i + v * Isa::lanes)));
    }
    int32_t lanes[Isa::lanes];
    Isa::store(lanes, Isa::add(Isa::add(below[0], below[1]), Isa::add(below[2], below[3])));
    int64_t count = i;
    for (const int32_t each : lanes) count -= each;
    for (; i < n; ++i) count += keys[i] >= least;
    return count;
}

template <class Isa>
int64_t keep(const int32_t* keys, int64_t n, int32_t kth, int64_t ties, float* values, int32_t* columns) {
    const auto bound = Isa::broadcast(kth);
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i += Isa::lanes) {
        const auto lanes = Isa::first_lanes(n - i);
        const uint32_t valid = Isa::bits(lanes);
        const auto key = Isa::load_some(lanes, keys + i);
        uint32_t equal = Isa::bits(Isa::equal(key, bound)) & valid;
        while (__builtin_popcount(equal) > ties)
            equal &= ~(1u << (31 - __builtin_clz(equal)));  // the first ones stay
        ties -= __builtin_popcount(equal);
        kept += Isa::compress((Isa::bits(Isa::above(key, bound)) & valid) | equal,
                              Isa::load_some(lanes, values + i), Isa::load_some(lanes, columns + i),
                              values + kept, columns + kept);
    }
    return kept;
}

template <class Isa>
constexpr SelectKernel select_kernel(const char* name, smla_isa isa) {
    return {name, isa, filter<Isa>, rank_keys<Isa>, count_keys<Isa>, keep<Isa>};
}

}  // namespace

}  // namespace smla
