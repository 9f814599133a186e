// 8 lanes of f32, for files compiled for AVX2.
#pragma once

#include "engines/cpu/lanes.h"

#include <immintrin.h>

namespace smla::lanes {

namespace {

// Permutations that move the lanes set in an 8-bit mask to the front.
struct Fronts {
    alignas(32) int32_t lanes[256][8];

    constexpr Fronts() : lanes() {
        for (int mask = 0; mask < 256; ++mask) {
            int next = 0;
            for (int lane = 0; lane < 8; ++lane)
                if (mask >> lane & 1) lanes[mask][next++] = lane;
        }
    }
};
constexpr Fronts kFronts;

struct Avx2 {
    using Vec = __m256;
    using Ints = __m256i;
    using Mask = __m256i;  // -1 in each lane that is set
    static constexpr int lanes = 8, values_per_word = 1;
    static constexpr uint32_t all = 0xff;

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
    static SMLA_INLINE Vec add_neighbours(Vec v) {  // lane i < 4: 2i + 2i+1
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
    static SMLA_INLINE Vec relu(Vec v) { return max(zero(), v); }
    // Returns the sums over the lanes of each vector, with the sum of vector i in lane i.
    static SMLA_INLINE Vec sum_lanes(const Vec (&v)[8]) {
        const Vec low = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3])),
                  high = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
        return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                             _mm256_permute2f128_ps(low, high, 0x31));
    }
    static SMLA_INLINE float sum(Vec v) {
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    }

    // Returns the mask of the first n lanes, or of all lanes.
    static SMLA_INLINE Mask first_lanes(int64_t n) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(n >= lanes ? lanes : int(n)), iota(0));
    }
    static SMLA_INLINE uint32_t bits(Mask m) { return uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(m))); }
    static SMLA_INLINE Vec select(Mask m, Vec yes, Vec no) {
        return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(m));
    }
    static SMLA_INLINE Mask reaches(Vec a, Vec b) {  // a >= b
        return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
    }
    static SMLA_INLINE Mask above(Ints a, Ints b) { return _mm256_cmpgt_epi32(a, b); }
    static SMLA_INLINE Mask equal(Ints a, Ints b) { return _mm256_cmpeq_epi32(a, b); }
    static SMLA_INLINE Vec load_some(Mask m, const float* at) { return _mm256_maskload_ps(at, m); }
    static SMLA_INLINE Ints load_some(Mask m, const int32_t* at) { return _mm256_maskload_epi32(at, m); }
    static SMLA_INLINE void store_some(Mask m, int32_t* at, Ints v) { _mm256_maskstore_epi32(at, m, v); }
    static SMLA_INLINE Ints load(const int32_t* at) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    }
    static SMLA_INLINE void store(int32_t* at, Ints v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v);
    }
    static SMLA_INLINE Ints broadcast(int32_t v) { return _mm256_set1_epi32(v); }
    static SMLA_INLINE Ints iota(int32_t first) {
        return _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    static SMLA_INLINE Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
    // Adds 1 to the lanes that are set in the mask.
    static SMLA_INLINE Ints count(Ints counts, Mask m) { return _mm256_sub_epi32(counts, m); }
    // Returns rank_key() of each lane.
    static SMLA_INLINE Ints rank_keys(Vec v) {
        const Ints bits = _mm256_castps_si256(add(v, zero()));  // -0 becomes +0
        const Ints flip = _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(0x7fffffff));
        const Ints nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        return _mm256_blendv_epi8(_mm256_xor_si256(bits, flip), _mm256_set1_epi32(INT32_MIN), nan);
    }
    // Stores the lanes that are set in `which` contiguously, and writes whole vectors. Returns their number.
    static SMLA_INLINE int compress(uint32_t which, Vec value, Ints column, float* out, int32_t* columns) {
        const Ints front = load(kFronts.lanes[which]);
        store(out, _mm256_permutevar8x32_ps(value, front));
        store(columns, _mm256_permutevar8x32_epi32(column, front));
        return __builtin_popcount(which);
    }

    // The bits of the code, placed in an f16, have the value / 256. The sum carries into bit 14 only for the
    // magnitude 0x7f, which becomes NaN.
    static SMLA_INLINE Vec load_e4m3(const uint8_t* codes) {
        const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
        const __m128i half = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(short(0xbf80)));
        const __m128i nan = _mm_and_si128(_mm_add_epi16(half, _mm_set1_epi16(0x80)), _mm_set1_epi16(0x4000));
        return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, nan)), _mm256_set1_ps(256.f));
    }
    // Decodes eight codes with the even channel in the low nibble. The permutation uses only three bits of a
    // code.
    static SMLA_INLINE Vec load_e2m1(const uint8_t* codes) {
        int32_t eight;
        __builtin_memcpy(&eight, codes, sizeof eight);
        const Ints code =
            _mm256_srlv_epi32(_mm256_set1_epi32(eight), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        const Vec magnitude =
            _mm256_permutevar8x32_ps(_mm256_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f), code);
        const Ints sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
        return _mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign));
    }
    static SMLA_INLINE Vec load_bf16(const void* at) {
        const __m128i words = _mm_loadu_si128(static_cast<const __m128i*>(at));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
    }
    // Rounds f32 to bf16, to nearest even, in the high halves of the words. NaN stays NaN.
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

}  // namespace smla::lanes
