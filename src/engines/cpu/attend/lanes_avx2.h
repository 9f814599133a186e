// 8 lanes of f32 for the templates of products.h, softmax.h and decode_f32.h. Only for files compiled for
// AVX2.
#pragma once

#include "engines/cpu/attend/products.h"

#include <immintrin.h>

namespace smla::cpu_attend {

namespace {

struct Avx2F32 {
    using Vec = __m256;
    // 2 vectors x 6 are 12 of 16 registers; 3 x 4 measured slower: 89 against 127 GFLOP/s
    static constexpr int lanes = 8, value_vectors = 2, value_heads = 6, values_per_word = 1,
                         order_vectors = 1;
    static constexpr int row_words = kWidest + kRowPadding;
    static constexpr BlockKeys block = kVectorBlock;

    static SMLA_INLINE Vec zero() { return _mm256_setzero_ps(); }
    static SMLA_INLINE Vec load(const float* at) { return _mm256_loadu_ps(at); }
    static SMLA_INLINE void store(float* at, Vec v) { _mm256_storeu_ps(at, v); }
    static SMLA_INLINE Vec load_words(const uint32_t* at) { return load(reinterpret_cast<const float*>(at)); }
    static SMLA_INLINE Vec broadcast(float v) { return _mm256_set1_ps(v); }
    static SMLA_INLINE Vec broadcast_word(const uint32_t* at) {
        return _mm256_broadcast_ss(reinterpret_cast<const float*>(at));
    }
    static SMLA_INLINE Vec broadcast_two(const uint32_t* at) {
        int64_t words;
        __builtin_memcpy(&words, at, sizeof words);
        return _mm256_castsi256_ps(_mm256_set1_epi64x(words));
    }
    static SMLA_INLINE Vec add_neighbours(Vec v) {  // lane i, i < 4: 2i + 2i+1
        const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 0, 1, 4, 5);
        return _mm256_permutevar8x32_ps(_mm256_hadd_ps(v, v), order);
    }
    static SMLA_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
    static SMLA_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
    static SMLA_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
    static SMLA_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
    static SMLA_INLINE Vec dot(Vec sum, Vec a, Vec b) { return _mm256_fmadd_ps(a, b, sum); }
    static SMLA_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }  // b if either is NaN
    static SMLA_INLINE Vec round(Vec v) {
        return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    // v * 2^n, 0 below the smallest normal number
    static SMLA_INLINE Vec scale_by_power(Vec v, Vec n) {
        const __m256i power =
            _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
        const Vec small = _mm256_cmp_ps(n, _mm256_set1_ps(-126.f), _CMP_LT_OQ);
        return _mm256_andnot_ps(small, _mm256_mul_ps(v, _mm256_castsi256_ps(power)));
    }
    static SMLA_INLINE bool all_one(Vec v) {
        return _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(1.f), _CMP_NEQ_UQ)) == 0;
    }
    static SMLA_INLINE void store_ordered(float* at, const Vec* v) { store(at, v[0]); }

    // fp8 bits moved to an f16 are the value / 256; 0x7f and 0xff become NaN.
    static SMLA_INLINE Vec load_e4m3(const uint8_t* codes) {
        const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
        const __m128i magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
        const __m128i nan =
            _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7e00));
        const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
        const __m128i half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan);
        return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.f));
    }
    static SMLA_INLINE Vec load_bf16(const char* at) {
        const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
    }
    // f32 rounded to a bf16 value, to nearest even, in the high halves of the words; a NaN stays one
    static SMLA_INLINE __m256i bf16_bits(Vec v) {
        const __m256i bits = _mm256_castps_si256(v);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        return _mm256_and_si256(_mm256_blendv_epi8(sum, quiet, nan), _mm256_set1_epi32(int(0xffff0000u)));
    }
    static SMLA_INLINE Vec round_bf16(Vec v) { return _mm256_castsi256_ps(bf16_bits(v)); }
    static SMLA_INLINE void store_bf16(char* at, Vec v) {
        const __m256i words = _mm256_srli_epi32(bf16_bits(v), 16);
        const __m128i packed =
            _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), packed);
    }
    static SMLA_INLINE void store_f16(char* at, Vec v) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at),
                         _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
};

}  // namespace

}  // namespace smla::cpu_attend
