// 16 lanes of f32 for the templates of products.h, softmax.h and decode_f32.h. Only for files compiled for
// AVX-512.
#pragma once

#include "engines/cpu/attend/products.h"
#include "engines/cpu/transpose_avx512.h"

#include <immintrin.h>

namespace smla::cpu_attend {

namespace {

struct Avx512 {
    using Vec = __m512;
    static constexpr int lanes = 16, value_vectors = 4, value_heads = 6;
    static constexpr BlockKeys block = kVectorBlock;

    static SMLA_INLINE Vec zero() { return _mm512_setzero_ps(); }
    static SMLA_INLINE Vec load(const float* at) { return _mm512_loadu_ps(at); }
    static SMLA_INLINE void store(float* at, Vec v) { _mm512_storeu_ps(at, v); }
    static SMLA_INLINE Vec load_words(const uint32_t* at) {
        return _mm512_castsi512_ps(_mm512_loadu_si512(at));
    }
    static SMLA_INLINE Vec broadcast(float v) { return _mm512_set1_ps(v); }
    static SMLA_INLINE Vec broadcast_word(const uint32_t* at) {
        return _mm512_castsi512_ps(_mm512_set1_epi32(int(*at)));
    }
    static SMLA_INLINE Vec broadcast_two(const uint32_t* at) {
        int64_t words;
        __builtin_memcpy(&words, at, sizeof words);
        return _mm512_castsi512_ps(_mm512_set1_epi64(words));
    }
    static SMLA_INLINE Vec add_neighbours(Vec v) {  // lane i: 2i + 2i+1
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
        const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15);
        return _mm512_add_ps(_mm512_permutexvar_ps(even, v), _mm512_permutexvar_ps(odd, v));
    }
    static SMLA_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
    static SMLA_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
    static SMLA_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
    static SMLA_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
    static SMLA_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b if either is NaN
    static SMLA_INLINE Vec round(Vec v) {
        return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static SMLA_INLINE Vec scale_by_power(Vec v, Vec n) { return _mm512_scalef_ps(v, n); }
    static SMLA_INLINE bool all_one(Vec v) {
        return _mm512_cmp_ps_mask(v, _mm512_set1_ps(1.f), _CMP_NEQ_UQ) == 0;
    }

    // fp8 bits moved to an f16 are the value / 256; 0x7f and 0xff become NaN.
    static SMLA_INLINE Vec load_e4m3(const uint8_t* codes) {
        const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
        const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
        const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f)),
                                             _mm256_set1_epi16(0x7e00));
        const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
        const __m256i half = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign), nan);
        return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.f));
    }
    static SMLA_INLINE Vec load_bf16(const char* at) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
    }
    // f32 rounded to a bf16 value, to nearest even, in the high halves of the words; a NaN stays one
    static SMLA_INLINE __m512i bf16_bits(Vec v) {
        const __m512i bits = _mm512_castps_si512(v);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        const __m512i rounded = _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
        return _mm512_and_si512(rounded, _mm512_set1_epi32(int(0xffff0000u)));
    }
    static SMLA_INLINE Vec round_bf16(Vec v) { return _mm512_castsi512_ps(bf16_bits(v)); }
    static SMLA_INLINE void store_bf16(char* at, Vec v) {
        const __m256i words = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_bits(v), 16));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), words);
    }
    static SMLA_INLINE void store_f16(char* at, Vec v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at),
                            _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
};

void transpose_avx512(const uint32_t* words, int stride, int steps, uint32_t* out, int64_t out_stride) {
    int step = 0;
    for (; step + 16 <= steps; step += 16)
        avx512::transpose_16(words + step, stride, out + step * out_stride, out_stride);
    for (; step < steps; ++step)
        for (int lane = 0; lane < 16; ++lane)
            out[step * out_stride + lane] = words[int64_t(lane) * stride + step];
}

struct Avx512F32 : Avx512 {
    static constexpr int values_per_word = 1, order_vectors = 1, row_words = kWidest + kRowPadding;
    static SMLA_INLINE Vec dot(Vec sum, Vec a, Vec b) { return _mm512_fmadd_ps(a, b, sum); }
    static SMLA_INLINE void store_ordered(float* at, const Vec* v) { store(at, v[0]); }
};

}  // namespace

}  // namespace smla::cpu_attend
