// Pairs of bf16 in 16 lanes, for files compiled for AVX-512 with bf16 and VBMI: the dot product, and decoders
// for 64 codes of e4m3 or 32 codes of e2m1 at a time to bf16, which represents all of their values.
#pragma once

#include "core/e4m3_table.h"
#include "engines/cpu/lanes_avx512.h"

namespace smla::lanes {

namespace {

// Converts even and odd f32 values to words of (even, odd) bf16.
SMLA_INLINE __m512i pair_words(__m512 even, __m512 odd) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

struct Avx512Bf16 : Avx512 {
    static constexpr int values_per_word = 2;

    static SMLA_INLINE Vec dot(Vec sum, Vec a, Vec b) {
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
    }
    static SMLA_INLINE void store_pair(uint32_t* at, Vec even, Vec odd) {
        _mm512_storeu_si512(at, pair_words(even, odd));
    }
};

struct Words {  // 64 bf16 values in order
    __m512i first, second;
};
SMLA_INLINE void store_words(uint32_t* at, Words words) {
    _mm512_storeu_si512(at, words.first);
    _mm512_storeu_si512(at + 16, words.second);
}

// High and low bytes of the bf16 values of the codes 0x00 to 0x7f.
struct E4m3Bytes {
    alignas(64) uint8_t high[128], low[128];
};
constexpr E4m3Bytes kE4m3Bytes = [] {
    E4m3Bytes out{};
    for (uint32_t code = 0; code < 128; ++code) {
        const uint32_t bits = __builtin_bit_cast(uint32_t, kE4m3Values[code]);
        out.high[code] = uint8_t(bits >> 24);
        out.low[code] = uint8_t(bits >> 16);
    }
    return out;
}();

// Decodes any codes with a table, exactly for all 256 codes including NaN. 2048 rows of 512 take 20 us;
// load_e4m3 and a product take 42 us. The constants stay in registers while an object is used.
struct E4m3Table {
    __m512i high0 = _mm512_load_si512(kE4m3Bytes.high), high1 = _mm512_load_si512(kE4m3Bytes.high + 64);
    __m512i low0 = _mm512_load_si512(kE4m3Bytes.low), low1 = _mm512_load_si512(kE4m3Bytes.low + 64);
    // Unpacking works on 128-bit parts: part i gets codes 8i.. of the first and of the second half.
    __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);

    SMLA_INLINE Words decode(__m512i codes) const {
        codes = _mm512_permutexvar_epi64(order, codes);
        const __m512i magnitude = _mm512_permutex2var_epi8(high0, codes, high1);
        const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
        // magnitude | (codes & 0x80)
        const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(char(0x80)), 0xf8);
        return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
    }
};

// Normal codes are decoded by arithmetic. The table needs twice as many shuffles, which on Intel are three
// operations of one port for each byte of the result.
//
// Returns whether normal_e4m3_words() supports 64 codes: none is zero, subnormal or NaN. Also rejects the
// normal codes 0x08 to 0x0e, which are below 2^-5, so that one addition detects all cases.
SMLA_INLINE __mmask64 other_e4m3(__m512i codes) {
    const __m512i next = _mm512_add_epi8(codes, _mm512_set1_epi8(1));  // rejected: magnitudes 0x00 to 0x0f
    return _mm512_testn_epi8_mask(next, _mm512_set1_epi8(0x70));
}
SMLA_INLINE bool normal_e4m3(__m512i codes) { return other_e4m3(codes) == 0; }
// Decodes 64 codes times 2^(exponent - 127): shifts the bits into place and adds to the exponent.
SMLA_INLINE Words normal_e4m3_words(const void* at, int exponent) {
    const auto half = [&](int i) SMLA_LAMBDA_INLINE {
        const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(at) + i));
        const __m512i bits = _mm512_and_si512(_mm512_slli_epi16(wide, 4), _mm512_set1_epi16(short(0x87f0)));
        return _mm512_add_epi16(bits, _mm512_set1_epi16(short((exponent - 7) * 128)));
    };
    return {half(0), half(1)};
}

// Decodes 32 codes, both nibbles of 16 bytes, times their e8m0 scale.
SMLA_INLINE __m512i e2m1_words(const uint8_t* at, uint8_t scale) {
    const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(int(e8m0_bits(scale))));
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    const auto scaled = [&](__m512i codes) SMLA_LAMBDA_INLINE {
        return _mm512_castps_si512(
            _mm512_mul_ps(_mm512_permutexvar_ps(codes, Avx512::e2m1_values()), factor));
    };
    // even >> 16 | (odd & 0xffff0000)
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(scaled(bytes), 16),
                                     scaled(_mm512_srli_epi32(bytes, 4)), _mm512_set1_epi32(int(0xffff0000)),
                                     0xf8);
}

}  // namespace

}  // namespace smla::lanes
