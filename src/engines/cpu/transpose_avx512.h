// Transposition in registers, for files compiled for AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace smla::avx512 {

// 16 x 16 words: pairs of rows, then pairs of pairs inside 128 bits, then 128-bit parts across registers.
[[gnu::always_inline]] inline void transpose_16(const uint32_t* words, int64_t stride, uint32_t* out,
                                                int64_t out_stride) {
    __m512i a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(words + i * stride);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {  // a[i + c]: column c of each 128-bit part, rows i to i + 3
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) {
        const __m512i low01 = _mm512_shuffle_i32x4(a[c], a[c + 4], 0x88),
                      high01 = _mm512_shuffle_i32x4(a[c], a[c + 4], 0xdd);
        const __m512i low23 = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0x88),
                      high23 = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0xdd);
        _mm512_storeu_si512(out + c * out_stride, _mm512_shuffle_i32x4(low01, low23, 0x88));
        _mm512_storeu_si512(out + (c + 4) * out_stride, _mm512_shuffle_i32x4(high01, high23, 0x88));
        _mm512_storeu_si512(out + (c + 8) * out_stride, _mm512_shuffle_i32x4(low01, low23, 0xdd));
        _mm512_storeu_si512(out + (c + 12) * out_stride, _mm512_shuffle_i32x4(high01, high23, 0xdd));
    }
}

}  // namespace smla::avx512
