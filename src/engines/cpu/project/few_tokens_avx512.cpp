#include "engines/cpu/project/few_tokens.h"

#include <immintrin.h>

namespace smla::cpu_project {

namespace {

struct Avx512 {
    using Vec = __m512;
    static constexpr int lanes = 16;
    static Vec zero() { return _mm512_setzero_ps(); }
    static Vec load(const float* at) { return _mm512_loadu_ps(at); }
    static Vec widen(const uint16_t* at) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
    static Vec broadcast(float value) { return _mm512_set1_ps(value); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
    static float sum(Vec v) { return _mm512_reduce_add_ps(v); }
    static void store(float* at, Vec v) { _mm512_storeu_ps(at, v); }
};

}  // namespace

constexpr FewKernels kFewAvx512 = make_few<Avx512>();

}  // namespace smla::cpu_project
