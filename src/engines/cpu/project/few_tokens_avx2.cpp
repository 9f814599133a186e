#include "engines/cpu/project/few_tokens.h"

#include <immintrin.h>

namespace smla::cpu_project {

namespace {

struct Avx2 {
    using Vec = __m256;
    static constexpr int lanes = 8;
    static Vec zero() { return _mm256_setzero_ps(); }
    static Vec load(const float* at) { return _mm256_loadu_ps(at); }
    static Vec widen(const uint16_t* at) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
    static Vec broadcast(float value) { return _mm256_set1_ps(value); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
    static float sum(Vec v) {
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    }
    static void store(float* at, Vec v) { _mm256_storeu_ps(at, v); }
};

}  // namespace

constexpr FewKernels kFewAvx2 = make_few<Avx2>();

}  // namespace smla::cpu_project
