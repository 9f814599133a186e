// The tile kernel on 16-lane registers, for the operands of `Op`: f32 (avx512) or bf16 pairs (avx512_bf16).
// Each file that includes it names its own namespace, so that code for one instruction set is never linked
// into another's.
#pragma once

#ifndef SMLA_LANES_NAMESPACE
#error "name the instruction set: #define SMLA_LANES_NAMESPACE score_avx512"
#endif

#include "engines/cpu/score/kernel.h"

#include <immintrin.h>

namespace smla::SMLA_LANES_NAMESPACE {

// Sums over the 16 lanes of 16 registers, register i to lane i.
inline __m512 sum_lanes(const __m512 (&sums)[16]) {
    __m512 four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m512 a = sums[4 * i], b = sums[4 * i + 1], c = sums[4 * i + 2], d = sums[4 * i + 3];
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
        four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                                _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    const auto halves = [](__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    return halves(halves(four[0], four[1]), halves(four[2], four[3]));
}
inline __m512 sum_lanes(const float* sums) {
    __m512 registers[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) registers[i] = _mm512_load_ps(sums + 16 * i);
    return sum_lanes(registers);
}

// Nothing to do between the products.
struct Nothing {
    static constexpr int steps = 0, words = 0;
    static constexpr bool fetches = false;
    void start(int) {}
    void step(int) {}
};

// `Keys` keys against 16 * Groups heads; the relu'd and weighted products join sums[key][16 lanes]. `side`
// takes Side::steps steps, one every Side::words words of the row; Side::fetches if it also fetches ahead.
template <class Op, int Groups, int Keys, class Side>
inline void score_block(const uint32_t* q, const float* w, __mmask16 last, int words, const uint32_t* keys,
                        int stride, bool first, float* sums, Side& side) {
    __m512 acc[Keys][Groups];
#pragma GCC unroll 16
    for (int j = 0; j < Keys; ++j)
#pragma GCC unroll 16
        for (int g = 0; g < Groups; ++g) acc[j][g] = _mm512_setzero_ps();
    const auto products = [&](int begin, int end) __attribute__((always_inline)) {
        for (int i = begin; i < end; ++i) {
            __m512i head[Groups];
#pragma GCC unroll 16
            for (int g = 0; g < Groups; ++g) head[g] = _mm512_load_si512(q + (i * Groups + g) * 16);
#pragma GCC unroll 16
            for (int j = 0; j < Keys; ++j) {
                const __m512i key = _mm512_set1_epi32(int(keys[j * stride + i]));
#pragma GCC unroll 16
                for (int g = 0; g < Groups; ++g) acc[j][g] = Op::multiply_add(acc[j][g], head[g], key);
            }
        }
    };
    for (int step = 0; step < Side::steps; ++step) {
        products(step * Side::words, (step + 1) * Side::words);
        side.step(step);
    }
    products(Side::steps * Side::words, words);
    const __m512 zero = _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int j = 0; j < Keys; ++j) {
        __m512 sum = first ? zero : _mm512_load_ps(sums + 16 * j);
#pragma GCC unroll 16
        for (int g = 0; g < Groups; ++g) {
            const __m512 relu =
                _mm512_max_ps(zero, acc[j][g]);  // a NaN is the second operand, and the result
            const __m512 weight = _mm512_load_ps(w + 16 * g);
            // Padded heads stay out: zero times an infinite key would be NaN.
            sum = g + 1 < Groups ? _mm512_fmadd_ps(relu, weight, sum)
                                 : _mm512_mask3_fmadd_ps(relu, weight, sum, last);
        }
        _mm512_store_ps(sums + 16 * j, sum);
    }
}

// One pass of a tile against up to 64 heads.
struct HeadPass {
    const uint32_t* q;
    const float* w;
    __mmask16 last;  // valid lanes of the last group
    bool first;      // of the passes over this tile
};

template <class Op, int Groups, int Keys, class Side>
inline void score_groups(const HeadPass& pass, const TileQuery& query, const uint32_t* keys, int n,
                         const TilesAhead& ahead, float* sums, Side side) {
    static_assert(kScoreTile % Keys == 0 && Keys <= kScoreKeys);
    for (int j = 0; j < n; j += Keys) {
        if (pass.first && !Side::fetches) fetch_ahead(ahead, j, Keys);
        side.start(j);
        score_block<Op, Groups, Keys>(pass.q, pass.w, pass.last, query.words,
                                      keys + int64_t(j) * query.stride, query.stride, pass.first,
                                      sums + 16 * j, side);
    }
}

// Keys per block: 16 to 24 accumulators hide the latency of the products and leave room for the operands.
template <class Op>
void score_heads(int groups, const HeadPass& pass, const TileQuery& query, const uint32_t* keys, int n,
                 const TilesAhead& ahead, float* sums) {
    if (groups == 4) score_groups<Op, 4, 6>(pass, query, keys, n, ahead, sums, Nothing());
    else if (groups == 3) score_groups<Op, 3, 8>(pass, query, keys, n, ahead, sums, Nothing());
    else if (groups == 2) score_groups<Op, 2, 8>(pass, query, keys, n, ahead, sums, Nothing());
    else score_groups<Op, 1, 16>(pass, query, keys, n, ahead, sums, Nothing());
}

// Op::score_and_decode does the first pass and decodes the next tile, if it can do both at once; else it does
// nothing.
template <class Op>
bool score_tile(const TileQuery& query, const uint32_t* keys, const float* scales, int n,
                const TilesAhead& ahead, float* sums, float* logits) {
    const uint32_t* q = query.packed;
    bool decoded = false;
    for (int h = 0; h < query.heads; h += 64) {
        const int heads = query.heads - h < 64 ? query.heads - h : 64, groups = (heads + 15) / 16;
        const HeadPass pass{q, query.w + h, __mmask16(0xffffu >> (16 * groups - heads)), h == 0};
        if (pass.first) decoded = Op::score_and_decode(groups, pass, query, keys, n, ahead, sums);
        if (!pass.first || !decoded) score_heads<Op>(groups, pass, query, keys, n, ahead, sums);
        q += int64_t(query.words) * groups * 16;
    }
    for (int j = 0; j < n; j += 16)
        _mm512_storeu_ps(logits + j, _mm512_mul_ps(sum_lanes(sums + 16 * j), _mm512_loadu_ps(scales + j)));
    return decoded;
}

// [heads][stride] words -> [block of 64 heads][word][lane], zero where there is no head
inline void pack_heads(const uint32_t* decoded, int heads, int words, int stride, uint32_t* packed) {
    const __m512i rows = _mm512_mullo_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(stride));
    for (int h = 0; h < heads; h += 64) {
        const int groups = ((heads - h < 64 ? heads - h : 64) + 15) / 16;
        for (int i = 0; i < words; ++i)
            for (int g = 0; g < groups; ++g, packed += 16) {
                const int first = h + 16 * g, left = heads - first;
                const __mmask16 mask = left >= 16 ? __mmask16(0xffff) : __mmask16((1u << left) - 1);
                _mm512_store_si512(packed,
                                   _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, rows,
                                                               decoded + int64_t(first) * stride + i, 4));
            }
    }
}

}  // namespace smla::SMLA_LANES_NAMESPACE
