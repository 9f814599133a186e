#include "engines/cpu/select/kernel.h"

#include <immintrin.h>

namespace smla {

namespace select_avx512 {

inline __mmask16 left(int64_t n) { return n >= 16 ? __mmask16(0xffff) : __mmask16((1u << n) - 1); }

constexpr int kDense = 20;  // if as many of 64 columns pass, compressing beats taking them one by one

inline int64_t compress(__mmask16 pass, __m512 value, __m512i column, float* out, int32_t* columns) {
    // In registers and stored whole: the store form of vpcompressd is slow on AMD.
    _mm512_storeu_ps(out, _mm512_maskz_compress_ps(pass, value));
    _mm512_storeu_si512(columns, _mm512_maskz_compress_epi32(pass, column));
    return __builtin_popcount(pass);
}

inline __m512i columns_from(int32_t first) {
    return _mm512_add_epi32(_mm512_set1_epi32(first),
                            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

int64_t filter(const float* values, int64_t n, int32_t first, float floor, float* out, int32_t* columns) {
    const __m512 least = _mm512_set1_ps(floor);
    int64_t count = 0, i = 0;
    for (; i + 64 <= n; i += 64) {
        uint64_t pass = 0;
        for (int part = 0; part < 4; ++part)
            pass |= uint64_t(_mm512_cmp_ps_mask(_mm512_loadu_ps(values + i + 16 * part), least, _CMP_GE_OQ))
                    << (16 * part);
        if (__builtin_popcountll(pass) >= kDense) {
            for (int part = 0; part < 64; part += 16)
                count += compress(__mmask16(pass >> part), _mm512_loadu_ps(values + i + part),
                                  columns_from(first + int32_t(i) + part), out + count, columns + count);
            continue;
        }
        for (; pass != 0; pass &= pass - 1) {
            const int64_t at = i + __builtin_ctzll(pass);
            out[count] = values[at];
            columns[count++] = first + int32_t(at);
        }
    }
    for (; i < n; i += 16) {
        const __mmask16 lanes = left(n - i);
        const __m512 value = _mm512_maskz_loadu_ps(lanes, values + i);
        count += compress(_mm512_mask_cmp_ps_mask(lanes, value, least, _CMP_GE_OQ), value,
                          columns_from(first + int32_t(i)), out + count, columns + count);
    }
    return count;
}

void keys(const float* values, int64_t n, int32_t* keys) {
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 lanes = left(n - i);
        const __m512 value = _mm512_maskz_loadu_ps(lanes, values + i);
        const __m512i bits = _mm512_castps_si512(_mm512_add_ps(value, _mm512_setzero_ps()));  // -0 becomes +0
        const __m512i flip = _mm512_and_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(0x7fffffff));
        const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
        _mm512_mask_storeu_epi32(
            keys + i, lanes,
            _mm512_mask_mov_epi32(_mm512_xor_si512(bits, flip), nan, _mm512_set1_epi32(INT32_MIN)));
    }
}

int64_t count(const int32_t* keys, int64_t n, int32_t least) {
    const __m512i bound = _mm512_set1_epi32(least);
    int64_t count = 0, i = 0;
    for (; i + 64 <= n; i += 64) {
        uint64_t mask = 0;
        for (int part = 0; part < 4; ++part)
            mask |= uint64_t(_mm512_cmpge_epi32_mask(_mm512_loadu_si512(keys + i + 16 * part), bound))
                    << (16 * part);
        count += __builtin_popcountll(mask);
    }
    for (; i < n; i += 16) {
        const __mmask16 lanes = left(n - i);
        count += __builtin_popcount(
            _mm512_mask_cmpge_epi32_mask(lanes, _mm512_maskz_loadu_epi32(lanes, keys + i), bound));
    }
    return count;
}

int64_t keep(const int32_t* keys, int64_t n, int32_t kth, int64_t ties, float* values, int32_t* columns) {
    const __m512i bound = _mm512_set1_epi32(kth);
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 lanes = left(n - i);
        const __m512i key = _mm512_maskz_loadu_epi32(lanes, keys + i);
        uint32_t equal = _mm512_mask_cmpeq_epi32_mask(lanes, key, bound);
        while (__builtin_popcount(equal) > ties)
            equal &= ~(1u << (31 - __builtin_clz(equal)));  // the first ones stay
        ties -= __builtin_popcount(equal);
        const __mmask16 stay = __mmask16(_mm512_mask_cmpgt_epi32_mask(lanes, key, bound) | equal);
        const __m512 value = _mm512_maskz_loadu_ps(lanes, values + i);
        const __m512i column = _mm512_maskz_loadu_epi32(lanes, columns + i);
        kept += compress(stay, value, column, values + kept, columns + kept);
    }
    return kept;
}

}  // namespace select_avx512

extern const SelectKernel kSelectAvx512 = {.name = "cpu_avx512_threshold_select",
                                           .isa = SMLA_ISA_AVX512,
                                           .filter = select_avx512::filter,
                                           .keys = select_avx512::keys,
                                           .count = select_avx512::count,
                                           .keep = select_avx512::keep};

}  // namespace smla
