// Codes of e4m3 that are normal numbers as bf16 by arithmetic, for files compiled for AVX-512. A table takes
// all codes but twice the shuffles: on Intel three operations of one port for each byte of the result.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace smla::avx512 {

// Whether 64 codes are normal numbers, which the function below takes. Says no where one is zero, subnormal
// or NaN, and also for those below 2^-5 but the largest: one addition then finds them all.
[[gnu::always_inline]] inline bool normal_e4m3(__m512i codes) {
    const __m512i next = _mm512_add_epi8(codes, _mm512_set1_epi8(1));  // magnitudes 0x00 to 0x0f: not taken
    return _mm512_testn_epi8_mask(next, _mm512_set1_epi8(0x70)) == 0;
}

// 32 of them times 2^(exponent - 127): the bits in their places, and a sum in the exponent.
[[gnu::always_inline]] inline __m512i normal_e4m3_words(const void* codes, int exponent) {
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(codes)));
    const __m512i bits = _mm512_and_si512(_mm512_slli_epi16(wide, 4), _mm512_set1_epi16(short(0x87f0)));
    return _mm512_add_epi16(bits, _mm512_set1_epi16(short((exponent - 7) * 128)));
}

}  // namespace smla::avx512
