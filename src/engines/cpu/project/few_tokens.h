// Products of a few tokens, bound by reading the weights. Each weight is read once, widened in registers and
// multiplied with up to kTogether tokens. BLAS would need it widened in memory (3.5 ms instead of 0.9 for
// absorb of V3.2, bf16, one token and thread). One file per instruction set fills a table.
#pragma once

#include <cstdint>

namespace smla::cpu_project {

constexpr int kTogether = 4;  // tokens

// out[t][n] = sum_k x[t][k] * w(n, k) for n in [0, rows). Weights are f32 or bf16 and dense along k or n; the
// other stride is in elements.
struct FewArgs {
    const float* x;  // [tokens][x_stride]
    const void* w;
    float* out;  // [tokens][out_stride]
    int64_t x_stride, w_stride, out_stride;
    int64_t inner, rows;
    int tokens;
    bool bf16, along_inner;
};

struct FewKernels {
    void (*run[kTogether])(const FewArgs&);  // by tokens - 1
};
extern const FewKernels kFewAvx2, kFewAvx512;

namespace {

template <class Isa, class Stored>
typename Isa::Vec load(const Stored* at) {
    if constexpr (sizeof(Stored) == 2) return Isa::load_bf16(at);
    else return Isa::load(at);
}
template <class Stored>
float one(const Stored* at) {
    if constexpr (sizeof(Stored) == 2) return __builtin_bit_cast(float, uint32_t(*at) << 16);
    else return *at;
}

// Multiplies rows that are dense along k: dot products, R rows at a time.
template <class Isa, class Stored, int T, int R>
void dots(const FewArgs& a, const Stored* w, int64_t n) {
    typename Isa::Vec sums[R][T];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) sums[r][t] = Isa::zero();
    int64_t k = 0;
    for (; k + Isa::lanes <= a.inner; k += Isa::lanes)
        for (int r = 0; r < R; ++r) {
            const auto weights = load<Isa>(w + (n + r) * a.w_stride + k);
            for (int t = 0; t < T; ++t)
                sums[r][t] = Isa::fma(weights, Isa::load(a.x + t * a.x_stride + k), sums[r][t]);
        }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) {
            float sum = Isa::sum(sums[r][t]);
            for (int64_t i = k; i < a.inner; ++i)
                sum += one(w + (n + r) * a.w_stride + i) * a.x[t * a.x_stride + i];
            a.out[t * a.out_stride + n + r] = sum;
        }
}

// Multiplies weights that are dense along n: V vectors of outputs at a time.
template <class Isa, class Stored, int T, int V>
void columns(const FewArgs& a, const Stored* w, int64_t n) {
    typename Isa::Vec sums[V][T];
    for (int v = 0; v < V; ++v)
        for (int t = 0; t < T; ++t) sums[v][t] = Isa::zero();
    for (int64_t k = 0; k < a.inner; ++k)
        for (int v = 0; v < V; ++v) {
            const auto weights = load<Isa>(w + k * a.w_stride + n + v * Isa::lanes);
            for (int t = 0; t < T; ++t)
                sums[v][t] = Isa::fma(weights, Isa::broadcast(a.x[t * a.x_stride + k]), sums[v][t]);
        }
    for (int v = 0; v < V; ++v)
        for (int t = 0; t < T; ++t) Isa::store(a.out + t * a.out_stride + n + v * Isa::lanes, sums[v][t]);
}

template <class Stored, int T>
void last_columns(const FewArgs& a, const Stored* w, int64_t n) {
    for (; n < a.rows; ++n)
        for (int t = 0; t < T; ++t) {
            float sum = 0;
            for (int64_t k = 0; k < a.inner; ++k)
                sum += one(w + k * a.w_stride + n) * a.x[t * a.x_stride + k];
            a.out[t * a.out_stride + n] = sum;
        }
}

template <class Isa, class Stored, int T>
void few_of(const FewArgs& a) {
    constexpr int kAtOnce = 4;  // rows or vectors, so that four tokens have sixteen sums
    const auto* w = static_cast<const Stored*>(a.w);
    int64_t n = 0;
    if (a.along_inner) {
        for (; n + kAtOnce <= a.rows; n += kAtOnce) dots<Isa, Stored, T, kAtOnce>(a, w, n);
        for (; n < a.rows; ++n) dots<Isa, Stored, T, 1>(a, w, n);
        return;
    }
    for (; n + kAtOnce * Isa::lanes <= a.rows; n += kAtOnce * Isa::lanes)
        columns<Isa, Stored, T, kAtOnce>(a, w, n);
    for (; n + Isa::lanes <= a.rows; n += Isa::lanes) columns<Isa, Stored, T, 1>(a, w, n);
    last_columns<Stored, T>(a, w, n);
}

template <class Isa, int T>
void few(const FewArgs& a) {
    if (a.bf16) few_of<Isa, uint16_t, T>(a);
    else few_of<Isa, float, T>(a);
}

template <class Isa>
constexpr FewKernels make_few() {
    return {{few<Isa, 1>, few<Isa, 2>, few<Isa, 3>, few<Isa, 4>}};
}

}  // namespace

}  // namespace smla::cpu_project
