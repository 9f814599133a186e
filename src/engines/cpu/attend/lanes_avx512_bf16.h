// Pairs of bf16 in 16 lanes, for files compiled for AVX-512 with bf16.
#pragma once

#include "engines/cpu/attend/decode_avx512_bf16.h"

namespace smla::cpu_attend {

namespace {

struct Avx512Bf16 : Avx512 {
    static constexpr int values_per_word = 2, order_vectors = 2, row_words = kWidest / 2 + kRowPadding;
    static constexpr int value_words = block.last / 2 * value_vectors * lanes;
    static constexpr bool pads_values = false;
    static SMLA_INLINE void keep_awake() {}  // the unit that multiplies, while rows are decoded
    static SMLA_INLINE Vec dot(Vec sum, Vec a, Vec b) {
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
    }
    static SMLA_INLINE void store_pair(uint32_t* at, Vec even, Vec odd) {
        _mm512_storeu_si512(at, pair_words(even, odd));
    }
    // Unpacked pairs hold dims 0-3, 8-11, 16-19, 24-27 in one vector and 4-7, 12-15, 20-23, 28-31 in the
    // next.
    static SMLA_INLINE void store_ordered(float* at, const Vec* v) {
        const __m512d low = _mm512_castps_pd(v[0]), high = _mm512_castps_pd(v[1]);
        const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
        store(at, _mm512_castpd_ps(_mm512_permutex2var_pd(low, first, high)));
        store(at + 16, _mm512_castpd_ps(_mm512_permutex2var_pd(low, second, high)));
    }
};

}  // namespace

}  // namespace smla::cpu_attend
