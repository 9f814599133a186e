// Converts e4m3 codes of normal numbers to bf16 by arithmetic, for files compiled for AVX-512. A table
// converts all codes, but with twice the shuffles: on Intel three operations of one port for each byte of the
// result.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace smla::avx512 {

// Whether the function below may take 64 codes: none is zero, subnormal or NaN. Also rejects the normal codes
// 0x08 to 0x0e, which are below 2^-5, so that one addition finds all cases.
[[gnu::always_inline]] inline __mmask64 other_e4m3(__m512i codes) {
    const __m512i next = _mm512_add_epi8(codes, _mm512_set1_epi8(1));  // rejected: magnitudes 0x00 to 0x0f
    return _mm512_testn_epi8_mask(next, _mm512_set1_epi8(0x70));
}
[[gnu::always_inline]] inline bool normal_e4m3(__m512i codes) { return other_e4m3(codes) == 0; }
[[gnu::always_inline]] inline bool normal_e4m3(__m512i first, __m512i second) {
    return (other_e4m3(first) | other_e4m3(second)) == 0;
}

// 32 normal codes times 2^(exponent - 127) as bf16: the bits shifted into place, then a sum in the exponent.
[[gnu::always_inline]] inline __m512i normal_e4m3_words(const void* codes, int exponent) {
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(codes)));
    const __m512i bits = _mm512_and_si512(_mm512_slli_epi16(wide, 4), _mm512_set1_epi16(short(0x87f0)));
    return _mm512_add_epi16(bits, _mm512_set1_epi16(short((exponent - 7) * 128)));
}

}  // namespace smla::avx512
