// The two matrix products of attend as templates for all instruction sets. Isa is a traits type of an
// anonymous namespace, so each file that includes this header has separate code.
#pragma once

#include "engines/cpu/attend/micro.h"
#include "engines/cpu/lanes.h"

namespace smla::cpu_attend {

// Lanes with the shape of a value product: sums for `Vectors` vectors of dims and `Heads` heads.
template <class Lanes, int Vectors, int Heads>
struct AttendLanes : Lanes {
    static constexpr int value_vectors = Vectors, value_heads = Heads;
    static constexpr int row_words = kWidest / Lanes::values_per_word + kRowPadding;
    static constexpr BlockKeys block = kVectorBlock;
};

template <class Isa>
SMLA_INLINE void fetch(Prefetch& prefetch, int lines) {
    for (; lines > 0 && prefetch.next != prefetch.end; --lines) {
        __builtin_prefetch(prefetch.next->row + prefetch.at, 0, 2);
        prefetch.at += 64;
        if (prefetch.at >= prefetch.row_bytes) {
            // fetches the separate scales or, without them, the last line of a row that starts within a line
            __builtin_prefetch(
                prefetch.next->scales ? prefetch.next->scales : prefetch.next->row + prefetch.row_bytes - 1,
                0, 2);
            prefetch.at = 0;
            ++prefetch.next;
        }
    }
}

// Scores of V vectors of heads and N keys in registers. Each step loads V vectors of q and broadcasts N key
// words. With few heads a head has two lanes, for even and odd steps, whose sums are added at the end.
template <class Isa, int V, int N, int LanesPerHead>
struct ScoreTile {
    using Vec = typename Isa::Vec;
    Vec sums[N][V];

    SMLA_INLINE void clear() {
        SMLA_UNROLL
        for (int n = 0; n < N; ++n) {
            SMLA_UNROLL
            for (int v = 0; v < V; ++v) sums[n][v] = Isa::zero();
        }
    }
    SMLA_INLINE void step(const uint32_t* q, const uint32_t* keys, int64_t row_words) {
        Vec heads[V];
        SMLA_UNROLL
        for (int v = 0; v < V; ++v) heads[v] = Isa::load_words(q + v * Isa::lanes);
        SMLA_UNROLL
        for (int n = 0; n < N; ++n) {
            Vec key;
            if constexpr (LanesPerHead == 1) key = Isa::broadcast_word(keys + n * row_words);
            else key = Isa::broadcast_two(keys + n * row_words);
            SMLA_UNROLL
            for (int v = 0; v < V; ++v) sums[n][v] = Isa::dot(sums[n][v], heads[v], key);
        }
    }
    SMLA_INLINE void store(const ScoreArgs& args, int key) {
        SMLA_UNROLL
        for (int n = 0; n < N; ++n) {
            float* out = args.scores + (key + n) * args.score_stride;
            const Vec scale = Isa::broadcast(args.scales ? args.scales[key + n] : 1.f);
            SMLA_UNROLL
            for (int v = 0; v < V; ++v) {
                float* at = out + v * Isa::lanes;
                Vec sum = sums[n][v];
                if constexpr (LanesPerHead == 2) sum = Isa::add_neighbours(sum);
                if (args.accumulate) Isa::store(at, Isa::fma(sum, scale, Isa::load(at)));
                else Isa::store(at, Isa::mul(sum, scale));
            }
        }
    }
};

// Scores tiles of N keys from `key` on; returns the end of the last whole tile.
template <class Isa, int V, int N, int LanesPerHead>
SMLA_INLINE int score_tiles(const ScoreArgs& args, Prefetch& prefetch, int key) {
    constexpr int64_t lanes = V * Isa::lanes;
    constexpr int L = LanesPerHead;
    // a constant if possible, so that 16 rows need one address register
    const int64_t row_words = Isa::row_words ? Isa::row_words : args.row_words;
    for (; key + N <= args.keys_padded; key += N) {
        ScoreTile<Isa, V, N, L> tile;
        tile.clear();
        const uint32_t* keys = args.keys + key * row_words;
        int step = args.begin;
        for (; step + kPrefetchSteps <= args.end; step += kPrefetchSteps) {
            fetch<Isa>(prefetch, prefetch.per_step);
            for (int i = 0; i < kPrefetchSteps; i += L)
                tile.step(args.q + (step + i) / L * lanes, keys + step + i, row_words);
        }
        for (; step < args.end; step += L) tile.step(args.q + step / L * lanes, keys + step, row_words);
        tile.store(args, key);
    }
    return key;
}

template <class Isa, int V, int N>
void score_keys(const ScoreArgs& args) {
    Prefetch prefetch = *args.prefetch;
    score_tiles<Isa, V, N, 1>(args, prefetch, 0);
    *args.prefetch = prefetch;
}

// Scores keys for few heads in tiles of N, then in tiles of Padding, so that a last key costs less than N.
template <class Isa, int N, int Padding>
void score_few_keys(const ScoreArgs& args) {
    Prefetch prefetch = *args.prefetch;
    const int key = score_tiles<Isa, 1, N, 2>(args, prefetch, 0);
    score_tiles<Isa, 1, Padding, 2>(args, prefetch, key);
    *args.prefetch = prefetch;
}

template <class Isa, int N>
void value_heads(const ValueArgs& args, int head) {
    using Vec = typename Isa::Vec;
    constexpr int V = Isa::value_vectors, tile = V * Isa::lanes;
    Vec sums[N][V];
    float* out = args.out + head * tile;
    SMLA_UNROLL
    for (int n = 0; n < N; ++n) {
        SMLA_UNROLL
        for (int v = 0; v < V; ++v)
            sums[n][v] = args.carry == Carry::none ? Isa::zero() : Isa::load(out + n * tile + v * Isa::lanes);
    }
    if (args.carry == Carry::rescale) {
        SMLA_UNROLL
        for (int n = 0; n < N; ++n) {
            const Vec alpha = Isa::broadcast(args.alpha[head + n]);
            SMLA_UNROLL
            for (int v = 0; v < V; ++v) sums[n][v] = Isa::mul(sums[n][v], alpha);
        }
    }
    const uint32_t* values = args.values;
    const uint32_t* weights = args.weights + head;
    for (int step = 0; step < args.steps; ++step) {
        Vec dims[V];
        SMLA_UNROLL
        for (int v = 0; v < V; ++v) dims[v] = Isa::load_words(values + v * Isa::lanes);
        SMLA_UNROLL
        for (int n = 0; n < N; ++n) {
            const Vec weight = Isa::broadcast_word(weights + n);
            SMLA_UNROLL
            for (int v = 0; v < V; ++v) sums[n][v] = Isa::dot(sums[n][v], dims[v], weight);
        }
        values += args.value_stride;
        weights += args.weight_stride;
    }
    SMLA_UNROLL
    for (int n = 0; n < N; ++n) {
        SMLA_UNROLL
        for (int v = 0; v < V; ++v) Isa::store(out + n * tile + v * Isa::lanes, sums[n][v]);
    }
}

// Divides heads into groups of nearly equal size, because the chains of sums of a small group are too short
// to hide their latency.
template <class Isa>
void value_tile(const ValueArgs& args) {
    constexpr int N = Isa::value_heads;
    for (int head = 0, left; (left = args.heads - head) > 0;) {
        const int groups = (left + N - 1) / N, take = (left + groups - 1) / groups;
        switch (take) {
            case 1: value_heads<Isa, 1>(args, head); break;
            case 2: value_heads<Isa, 2>(args, head); break;
            case 3: value_heads<Isa, 3>(args, head); break;
            case 4: value_heads<Isa, 4>(args, head); break;
            case 5: value_heads<Isa, N >= 5 ? 5 : N>(args, head); break;
            default: value_heads<Isa, N>(args, head); break;
        }
        head += take;
    }
}

}  // namespace smla::cpu_attend
