#include "engines/cpu/select/kernel.h"

#include <immintrin.h>

namespace smla {

namespace select_avx2 {

// For each 8-bit mask, the lanes that are set, moved to the front.
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

// -1 in the first n lanes.
inline __m256i left(int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n >= 8 ? 8 : int(n)), lane);
}

inline int append(int mask, __m256 value, __m256i column, float* out, int32_t* columns) {
    const __m256i front = _mm256_load_si256(reinterpret_cast<const __m256i*>(kFronts.lanes[mask]));
    _mm256_storeu_ps(out, _mm256_permutevar8x32_ps(value, front));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(columns), _mm256_permutevar8x32_epi32(column, front));
    return __builtin_popcount(unsigned(mask));
}

// No branch on what passes: one in fifty columns does, anywhere, and a mispredicted branch costs more than
// the shuffles.
int64_t filter(const float* values, int64_t n, int32_t first, float floor, float* out, int32_t* columns) {
    const __m256 least = _mm256_set1_ps(floor);
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int64_t count = 0, i = 0;
    const auto eight = [&](__m256 value, __m256 valid) {
        const __m256 pass = _mm256_and_ps(_mm256_cmp_ps(value, least, _CMP_GE_OQ), valid);
        const __m256i column = _mm256_add_epi32(_mm256_set1_epi32(first + int32_t(i)), lane);
        count += append(_mm256_movemask_ps(pass), value, column, out + count, columns + count);
    };
    for (; i + 8 <= n; i += 8) eight(_mm256_loadu_ps(values + i), _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
    if (i < n) eight(_mm256_maskload_ps(values + i, left(n - i)), _mm256_castsi256_ps(left(n - i)));
    return count;
}

void keys(const float* values, int64_t n, int32_t* keys) {
    for (int64_t i = 0; i < n; i += 8) {
        const __m256i lanes = left(n - i);
        const __m256 value = _mm256_maskload_ps(values + i, lanes);
        const __m256i bits = _mm256_castps_si256(_mm256_add_ps(value, _mm256_setzero_ps()));  // -0 becomes +0
        const __m256i flip = _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(0x7fffffff));
        const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
        const __m256 key = _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_xor_si256(bits, flip)),
                                            _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MIN)), nan);
        _mm256_maskstore_epi32(keys + i, lanes, _mm256_castps_si256(key));
    }
}

inline int mask_of(__m256i lanes) { return _mm256_movemask_ps(_mm256_castsi256_ps(lanes)); }

int64_t count(const int32_t* keys, int64_t n, int32_t least) {
    const __m256i bound = _mm256_set1_epi32(least);
    __m256i below = _mm256_setzero_si256();  // minus how many, lane by lane; n is far below 2^31
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i key = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + i));
        below = _mm256_add_epi32(below, _mm256_cmpgt_epi32(bound, key));
    }
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), below);
    int64_t count = i;
    for (const int32_t each : lanes) count += each;
    for (; i < n; ++i) count += keys[i] >= least;
    return count;
}

int64_t keep(const int32_t* keys, int64_t n, int32_t kth, int64_t ties, float* values, int32_t* columns) {
    const __m256i bound = _mm256_set1_epi32(kth);
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i += 8) {
        const __m256i lanes = left(n - i);
        const __m256i key = _mm256_maskload_epi32(keys + i, lanes);
        const int valid = mask_of(lanes);
        int equal = mask_of(_mm256_cmpeq_epi32(key, bound)) & valid;
        while (__builtin_popcount(unsigned(equal)) > ties)
            equal &= ~(1 << (31 - __builtin_clz(unsigned(equal))));
        ties -= __builtin_popcount(unsigned(equal));
        const int stay = (mask_of(_mm256_cmpgt_epi32(key, bound)) & valid) | equal;
        kept += append(stay, _mm256_maskload_ps(values + i, lanes), _mm256_maskload_epi32(columns + i, lanes),
                       values + kept, columns + kept);
    }
    return kept;
}

}  // namespace select_avx2

extern const SelectKernel kSelectAvx2 = {.name = "cpu_avx2_threshold_select",
                                         .isa = SMLA_ISA_AVX2,
                                         .filter = select_avx2::filter,
                                         .keys = select_avx2::keys,
                                         .count = select_avx2::count,
                                         .keep = select_avx2::keep};

}  // namespace smla
