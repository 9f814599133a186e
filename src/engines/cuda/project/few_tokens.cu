// project for 1 to 8 tokens (a decode step): out[t,g,n] = sum_k x[t,g,k] w[g,n,k], f32 products and sums.
//
// Two kernels, by the dimension along which w [G,N,K] is dense:
//   along k  A warp computes kRows outputs n over every splits-th step of 256 k. A lane has 8 neighboring k,
//            whose x all rows share. Sums are added over lanes, then over the warps that share n.
//   along n  A warp computes 256 n, 8 neighboring ones per lane, over every 8th k; x [T,K] is in shared
//            memory as f32. Sums are added over the warps of the block.
// Tokens   1, 2, 4 or 8, as a template argument, so that sums stay in registers. Weights are f32 or bf16.
// Shared   Sums of warps [kWarps][T][kRows] | x [T,K] and sums [kWarps][256] of one token.
// Limit    The bytes of w, each read once, 16 per lane and load. A block prefetches its first weights, or all
//          of them if w is dense along n, then waits for the previous kernel.
// Why      cuBLASLt requires equal dtypes. With f32 x and bf16 weights it runs between a kernel that splits x
//          into bf16 parts and one that adds their sums (docs/kernels/log/cuda_stages.md).
// The order of a sum depends only on the shape of w, but differs from other kernels, so batch-invariant calls
// are not supported.
#include "core/tensor.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/project/pieces.h"
#include "engines/cuda/project/project.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

namespace smla {

namespace cuda {

namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kFewTokensLimit = 8;
constexpr int kRows = 4;                      // outputs per warp, if w is dense along k
constexpr int kLane = 8, kStep = 32 * kLane;  // k per lane and step, k per warp and step
// Rows of a warp in flight, if w is dense along n: in 32 registers, or 16 with four or more tokens.
template <class W, int kTokens>
constexpr int kAhead = (kTokens < 4 ? 16 : 8) / sizeof(W);
constexpr int64_t kMostShared = 32 * 1024;  // maximum bytes of x, if w is dense along n
// Sums over k are split while each warp has a step, for more loads in flight, up to this number of warps: 16
// per multiprocessor of an H100. With the GPU's own number, bits would depend on the device.
constexpr int64_t kWantedWarps = 16 * 132;

struct FewTokens {
    Tensor x, out;
    const char* w;
    int64_t w_group, w_step;  // elements between groups, and between rows along the dense dimension
    int outer, inner, tokens;
    int splits, tiles;  // warps that share the sums of a row; blocks per group
};

// 8 neighboring elements, unconverted: 16 bytes, or 32 bytes of f32.
template <class T>
struct Raw {
    uint4 words[sizeof(T) == 4 ? 2 : 1];
};
template <class T>
__device__ Raw<T> load_raw(const T* at) {
    Raw<T> out;
#pragma unroll
    for (int i = 0; i < int(sizeof(out) / 16); ++i) out.words[i] = *(reinterpret_cast<const uint4*>(at) + i);
    return out;
}

// Loads data that is read once, without caching it in L1.
template <class T>
__device__ Raw<T> load_raw_once(const T* at) {
    Raw<T> out;
#pragma unroll
    for (int i = 0; i < int(sizeof(out) / 16); ++i) {
        uint4& words = out.words[i];
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                     : "l"(reinterpret_cast<const uint4*>(at) + i));
    }
    return out;
}

struct F16 {
    uint16_t bits;
};
struct Bf16 {
    uint16_t bits;
};
__device__ inline float low_half(uint32_t word, Bf16) { return __uint_as_float(word << 16); }
__device__ inline float high_half(uint32_t word, Bf16) { return __uint_as_float(word & 0xffff0000u); }
__device__ inline float low_half(uint32_t word, F16) {
    return __half2float(__ushort_as_half(uint16_t(word)));
}
__device__ inline float high_half(uint32_t word, F16) {
    return __half2float(__ushort_as_half(uint16_t(word >> 16)));
}

template <class T>
__device__ void to_f32(const Raw<T>& raw, float (&out)[kLane]) {
    const uint32_t* const words = &raw.words[0].x;
#pragma unroll
    for (int i = 0; i < kLane; ++i)
        if constexpr (sizeof(T) == 4) out[i] = __uint_as_float(words[i]);
        else out[i] = i % 2 ? high_half(words[i / 2], T{}) : low_half(words[i / 2], T{});
}

// Loads 8 values of each of kN tokens starting at `first`, all loads before the first use. Tokens past the
// end repeat the last one; their sums are not stored.
template <int kN>
__device__ void load_x(const FewTokens& p, int first, int64_t group, int64_t k, float (&out)[kN][kLane]) {
    const auto load = [&](const auto* x) {
        Raw<std::remove_cvref_t<decltype(*x)>> raw[kN];
#pragma unroll
        for (int t = 0; t < kN; ++t)
            raw[t] = load_raw(x + element(p.x, min(first + t, p.tokens - 1), group, k));
#pragma unroll
        for (int t = 0; t < kN; ++t) to_f32(raw[t], out[t]);
    };
    if (p.x.dtype == SMLA_F32) load(static_cast<const float*>(p.x.data));
    else if (p.x.dtype == SMLA_BF16) load(static_cast<const Bf16*>(p.x.data));
    else load(static_cast<const F16*>(p.x.data));
}

// Computes the warp's part of the sums of kRows rows starting at `first`, for all tokens.
template <class W, int kTokens>
__device__ void multiply_rows(const FewTokens& p, const W* w, int64_t group, int first, int split,
                              float (&sums)[kTokens][kRows]) {
    constexpr int kTogether = kTokens < 4 ? kTokens : 4;
    for (int k = split * kStep + kLane * int(threadIdx.x % 32); k < p.inner; k += p.splits * kStep) {
        Raw<W> raw[kRows] = {};
#pragma unroll
        for (int r = 0; r < kRows; ++r)
            if (first + r < p.outer) raw[r] = load_raw_once(w + (first + r) * p.w_step + k);
        float x[kTogether][kLane], weights[kRows][kLane];
        load_x(p, 0, group, k, x);
#pragma unroll
        for (int r = 0; r < kRows; ++r) to_f32(raw[r], weights[r]);
#pragma unroll
        for (int token = 0; token < kTokens; token += kTogether) {
            if (token > 0) load_x(p, token, group, k, x);
#pragma unroll
            for (int t = 0; t < kTogether; ++t)
#pragma unroll
                for (int r = 0; r < kRows; ++r)
#pragma unroll
                    for (int i = 0; i < kLane; ++i) sums[token + t][r] += x[t][i] * weights[r][i];
        }
    }
}

template <class W, int kTokens>
__global__ void __launch_bounds__(kThreads)
    few_along_k(const GridOrder order, const __grid_constant__ FewTokens p) {
    __shared__ float shared[kWarps][kTokens][kRows];
    const int warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32);
    const int64_t group = blockIdx.x / unsigned(p.tiles);
    const int tile = int(blockIdx.x % unsigned(p.tiles)), warp_rows = kWarps / p.splits;
    const int first = (tile * warp_rows + warp / p.splits) * kRows;
    const int split = warp % p.splits;
    const W* const w = reinterpret_cast<const W*>(p.w) + group * p.w_group;
    const int k = split * kStep + kLane * lane;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
        if (first + r < p.outer && k < p.inner && order.has_work())
            prefetch_line(w + (first + r) * p.w_step + k);
    if (!order.start()) return;
    float sums[kTokens][kRows] = {};
    multiply_rows(p, w, group, first, split, sums);
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const float sum = warp_sum(sums[t][r]);
            if (lane == 0) shared[warp][t][r] = sum;
        }
    __syncthreads();
    for (int i = int(threadIdx.x); i < warp_rows * kRows * kTokens; i += kThreads) {
        const int t = i / (warp_rows * kRows), row = i % (warp_rows * kRows);
        const int n = tile * warp_rows * kRows + row;
        if (t >= p.tokens || n >= p.outer) continue;
        float sum = 0;
        for (int s = 0; s < p.splits; ++s) sum += shared[row / kRows * p.splits + s][t][row % kRows];
        store_value(p.out, element(p.out, t, group, n), sum);
    }
}

template <class W, int kTokens>
__global__ void __launch_bounds__(kThreads)
    few_along_n(const GridOrder order, const __grid_constant__ FewTokens p) {
    __shared__ float shared[kWarps][kStep];
    extern __shared__ float xs[];  // [K][kTokens]
    const int warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32);
    const int64_t group = blockIdx.x / unsigned(p.tiles);
    const int first = int(blockIdx.x % unsigned(p.tiles)) * kStep, n = first + kLane * lane;
    const bool here = n < p.outer;
    const W* const w = reinterpret_cast<const W*>(p.w) + group * p.w_group + n;
    for (int k = warp; here && order.has_work() && k < p.inner; k += kWarps) prefetch_line(w + k * p.w_step);
    if (!order.start()) return;
    for (int i = int(threadIdx.x); i < kTokens * p.inner; i += kThreads) {
        const int k = i / kTokens, t = i % kTokens;
        xs[i] = t < p.tokens ? load_value(p.x, element(p.x, t, group, k)) : 0.f;
    }
    __syncthreads();
    float sums[kTokens][kLane] = {};
    constexpr int kTogether = kAhead<W, kTokens>;
    for (int from = warp; from < p.inner; from += kTogether * kWarps) {
        Raw<W> raw[kTogether] = {};  // all loads are in flight before the first product
#pragma unroll
        for (int a = 0; a < kTogether; ++a)
            if (here && from + a * kWarps < p.inner)
                raw[a] = load_raw_once(w + (from + a * kWarps) * p.w_step);
#pragma unroll
        for (int a = 0; a < kTogether; ++a) {
            const int k = from + a * kWarps;
            if (k >= p.inner) break;
            float weights[kLane];
            to_f32(raw[a], weights);
#pragma unroll
            for (int t = 0; t < kTokens; ++t)
#pragma unroll
                for (int i = 0; i < kLane; ++i) sums[t][i] += xs[k * kTokens + t] * weights[i];
        }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
        if (t >= p.tokens) break;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kLane; ++i) shared[warp][lane * kLane + i] = sums[t][i];
        __syncthreads();
        float sum = 0;
#pragma unroll
        for (int s = 0; s < kWarps; ++s) sum += shared[s][threadIdx.x];
        if (first + int(threadIdx.x) < p.outer)
            store_value(p.out, element(p.out, t, group, first + int(threadIdx.x)), sum);
    }
}

using Args = smla_project_args;

bool along_k(const Tensor& w) { return w.stride_elems[2] == 1; }

std::string refuse_few(const Args& args, int most_tokens, const Env& env) {
    const Tensor &x = args.x, &w = args.w;
    if (x.shape[0] > most_tokens) return text(x.shape[0], " tokens exceed the limit of ", most_tokens);
    if (env.batch_invariant)
        return "batch-invariant mode excludes kernels whose summation order depends on the number of tokens";
    if (w.dtype != SMLA_F32 && w.dtype != SMLA_BF16) return "weights must be f32 or bf16";
    if (!is_half_or_f32(x) || !is_half_or_f32(args.out)) return "x and out must be f32, bf16 or f16";
    if (w.shape[1] > INT32_MAX || w.shape[2] > INT32_MAX / kFewTokensLimit)
        return "a dimension of w exceeds its limit";
    if (along_k(w)) {
        if (w.shape[2] % kLane != 0 || !aligned(w, {0, 1}) || x.stride_elems[2] != 1 || !aligned(x, {0, 1}))
            return "rows of x and w must be contiguous and aligned to 16 bytes";
        return "";
    }
    if (w.stride_elems[1] != 1 || w.shape[1] % kLane != 0 || !aligned(w, {0, 2}))
        return "w must be contiguous along k or n and aligned to 16 bytes";
    if (kFewTokensLimit * w.shape[2] * int64_t(sizeof(float)) > kMostShared)
        return text("x with ", w.shape[2],
                    " values per token does not fit in shared memory, which w contiguous along n requires");
    return "";
}

template <class W, int kTokens>
void launch_few(const Args& args, const Env& env) {
    const Tensor& w = args.w;
    const bool k_dense = along_k(w);
    FewTokens p{.x = args.x,
                .out = args.out,
                .w = static_cast<const char*>(w.data),
                .w_group = w.stride_elems[0],
                .w_step = w.stride_elems[k_dense ? 1 : 2],
                .outer = int(w.shape[1]),
                .inner = int(w.shape[2]),
                .tokens = int(args.x.shape[0]),
                .splits = 1,
                .tiles = 0};
    if (!k_dense) {
        p.tiles = int(ceil_div(p.outer, kStep));
        return launch_ordered(few_along_n<W, kTokens>, w.shape[0] * p.tiles, kThreads,
                              size_t(kTokens) * size_t(p.inner) * sizeof(float), env, p);
    }
    const int64_t row_warps = w.shape[0] * ceil_div(p.outer, kRows);
    const auto pays = [&] {
        return 2 * p.splits * kStep <= p.inner ||
               (p.splits * kStep < p.inner && row_warps * p.splits < kWantedWarps);
    };
    while (p.splits < kWarps && pays()) p.splits *= 2;
    p.tiles = int(ceil_div(p.outer, kRows * kWarps / p.splits));
    launch_ordered(few_along_k<W, kTokens>, w.shape[0] * p.tiles, kThreads, 0, env, p);
}
// f32 weights are limited to two tokens, to build fewer kernels. With f32 x, cuBLASLt needs no conversion.
template <class W>
constexpr int kMostOf = sizeof(W) == 4 ? 2 : kFewTokensLimit;

template <class W>
void run_few(const Args& args, const Env& env) {
    const int64_t tokens = args.x.shape[0];
    if (element_count(args.out) == 0) return;
    if (tokens == 1) return launch_few<W, 1>(args, env);
    if (tokens == 2) return launch_few<W, 2>(args, env);
    if constexpr (kMostOf < W >> 2) {
        if (tokens <= 4) return launch_few<W, 4>(args, env);
        launch_few<W, 8>(args, env);
    }
}

CallPlan<Args> plan_few(const Args& args, const Env& env) {
    const bool f32 = args.w.dtype == SMLA_F32;
    CallPlan<Args> plan = refuse_call<Args>(refuse_few(args, f32 ? kMostOf<float> : kMostOf<Bf16>, env));
    if (!plan.refusal.empty()) return plan;
    plan.launch = f32 ? run_few<float> : run_few<Bf16>;
    plan.may_be_beside = true;
    return plan;
}

}  // namespace

}  // namespace cuda

const Candidate<smla_project_args> kFewTokensProject{.name = "cuda_few_project", .plan = cuda::plan_few};

}  // namespace smla
