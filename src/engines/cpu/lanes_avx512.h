// 16 lanes of f32, for files compiled for AVX-512.
#pragma once

#include "engines/cpu/lanes.h"

#include <immintrin.h>

namespace smla::lanes {

namespace {

struct Avx512 {
    using Vec = __m512;
    using Ints = __m512i;
    using Mask = __mmask16;
    static constexpr int lanes = 16, values_per_word = 1;
    static constexpr uint32_t all = 0xffff;

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
    static SMLA_INLINE Vec dot(Vec sum, Vec a, Vec b) { return fma(a, b, sum); }
    static SMLA_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b if either is NaN
    static SMLA_INLINE Vec round(Vec v) {
        return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static SMLA_INLINE Vec scale_by_power(Vec v, Vec n) { return _mm512_scalef_ps(v, n); }
    static SMLA_INLINE bool all_one(Vec v) {
        return _mm512_cmp_ps_mask(v, _mm512_set1_ps(1.f), _CMP_NEQ_UQ) == 0;
    }

    static SMLA_INLINE Vec relu(Vec v) { return max(zero(), v); }
    // Returns the sums over the lanes of each vector, with the sum of vector i in lane i.
    static SMLA_INLINE Vec sum_lanes(const Vec (&v)[16]) {
        Vec four[4];
        SMLA_UNROLL
        for (int i = 0; i < 4; ++i) {
            const Vec a = v[4 * i], b = v[4 * i + 1], c = v[4 * i + 2], d = v[4 * i + 3];
            const Vec ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            const Vec cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
            four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                                    _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
        }
        const auto halves = [](Vec a, Vec b) SMLA_LAMBDA_INLINE {
            return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
        };
        return halves(halves(four[0], four[1]), halves(four[2], four[3]));
    }
    static SMLA_INLINE float sum(Vec v) { return _mm512_reduce_add_ps(v); }

    // Returns the mask of the first n lanes, or of all lanes.
    static SMLA_INLINE Mask first_lanes(int64_t n) { return n >= lanes ? Mask(0xffff) : Mask((1u << n) - 1); }
    static SMLA_INLINE uint32_t bits(Mask m) { return m; }
    static SMLA_INLINE Vec select(Mask m, Vec yes, Vec no) { return _mm512_mask_mov_ps(no, m, yes); }
    static SMLA_INLINE Mask reaches(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }  // a >= b
    static SMLA_INLINE Mask above(Ints a, Ints b) { return _mm512_cmpgt_epi32_mask(a, b); }
    static SMLA_INLINE Mask equal(Ints a, Ints b) { return _mm512_cmpeq_epi32_mask(a, b); }
    static SMLA_INLINE Vec load_some(Mask m, const float* at) { return _mm512_maskz_loadu_ps(m, at); }
    static SMLA_INLINE Ints load_some(Mask m, const int32_t* at) { return _mm512_maskz_loadu_epi32(m, at); }
    static SMLA_INLINE void store_some(Mask m, int32_t* at, Ints v) { _mm512_mask_storeu_epi32(at, m, v); }
    static SMLA_INLINE Ints load(const int32_t* at) { return _mm512_loadu_si512(at); }
    static SMLA_INLINE void store(int32_t* at, Ints v) { _mm512_storeu_si512(at, v); }
    static SMLA_INLINE Ints broadcast(int32_t v) { return _mm512_set1_epi32(v); }
    static SMLA_INLINE Ints iota(int32_t first) {
        return _mm512_add_epi32(_mm512_set1_epi32(first),
                                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    }
    static SMLA_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
    // Adds 1 to the lanes that are set in the mask.
    static SMLA_INLINE Ints count(Ints counts, Mask m) {
        return _mm512_mask_sub_epi32(counts, m, counts, _mm512_set1_epi32(-1));
    }
    // Returns rank_key() of each lane.
    static SMLA_INLINE Ints rank_keys(Vec v) {
        const Ints bits = _mm512_castps_si512(add(v, zero()));  // -0 becomes +0
        const Ints flip = _mm512_and_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(0x7fffffff));
        const Mask nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        return _mm512_mask_mov_epi32(_mm512_xor_si512(bits, flip), nan, _mm512_set1_epi32(INT32_MIN));
    }
    // Stores the lanes that are set in `which` contiguously, and writes whole vectors. Returns their number.
    // Compresses in registers, because the store form of vpcompressd is slow on AMD processors.
    static SMLA_INLINE int compress(uint32_t which, Vec value, Ints column, float* out, int32_t* columns) {
        store(out, _mm512_maskz_compress_ps(Mask(which), value));
        store(columns, _mm512_maskz_compress_epi32(Mask(which), column));
        return __builtin_popcount(which);
    }

    // The bits of the code, placed in an f16, have the value / 256. The sum carries into bit 14 only for the
    // magnitude 0x7f, which becomes NaN.
    static SMLA_INLINE Vec load_e4m3(const uint8_t* codes) {
        const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
        const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(short(0xbf80)));
        const __m256i sum = _mm256_add_epi16(half, _mm256_set1_epi16(0x80));
        const __m256i bits =  // half | (sum & 0x4000)
            _mm256_ternarylogic_epi32(half, sum, _mm256_set1_epi16(0x4000), 0xf8);
        return _mm512_mul_ps(_mm512_cvtph_ps(bits), _mm512_set1_ps(256.f));
    }
    static SMLA_INLINE Vec e2m1_values() {  // by code
        return _mm512_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f,
                              -4.f, -6.f);
    }
    // Decodes 16 codes with the even channel in the low nibble. The permutation uses only four bits of a
    // code.
    static SMLA_INLINE Vec load_e2m1(const uint8_t* codes) {
        const Ints pairs = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
        const Ints code = _mm512_or_si512(pairs, _mm512_slli_epi64(pairs, 28));  // low dword: even, high: odd
        return _mm512_permutexvar_ps(code, e2m1_values());
    }
    static SMLA_INLINE Vec load_bf16(const void* at) {
        const __m256i words = _mm256_loadu_si256(static_cast<const __m256i*>(at));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
    }
    // Rounds f32 to bf16, to nearest even, in the high halves of the words. NaN stays NaN.
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

    // Transposes 16 x 16 words: first pairs of rows, then pairs of pairs in 128-bit parts, then these parts.
    static SMLA_INLINE void transpose_square(const uint32_t* words, int64_t stride, uint32_t* out,
                                             int64_t out_stride) {
        __m512i a[16], b[16];
        SMLA_UNROLL
        for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(words + i * stride);
        SMLA_UNROLL
        for (int i = 0; i < 16; i += 2) {
            b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
            b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
        }
        SMLA_UNROLL
        for (int i = 0; i < 16; i += 4) {  // a[i + c]: column c of each 128-bit part, rows i to i + 3
            a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
            a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
            a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
            a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
        }
        SMLA_UNROLL
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
};

}  // namespace

}  // namespace smla::lanes
