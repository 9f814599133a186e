// project without a library: out[t,g,n] = sum_k x[t,g,k] w[g,n,k], f32 sums, any dtypes and strides.
//
// Two kernels, neither with tensor cores (mixed dtypes, f32 sums of f32 products):
//   few tokens  a block takes up to kFew tokens and a few n: a warp per n with lanes along k; or, if the
//               weight is dense along n, a lane per n with warps along k, and a sum over warps in shared
//               memory [warps][kFew][32]. Every weight is read once, by neighbouring lanes.
//   tiles       64 tokens x 64 n per block, 16 k per step through shared memory [16][64 + 4] for each
//               operand (two barriers per step), 4 x 4 results per thread in registers.
// Batch-invariant calls always take tiles, so that a sum's order does not depend on the number of tokens.
// Limit: load_value's switch and f32 units. This runs only if cuBLASLt refuses or is not installed.
#include "core/tensor.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/project/project.h"

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kFew = 8;
constexpr int kTile = 64, kDepth = 16, kSide = 4;  // per block; per thread
static_assert(kWarps == kFew, "a warp adds up a token");
static_assert(kTile / kSide * (kTile / kSide) == kThreads);

// Rows of one group: element (row, k) is at begin + row * row_step + k * k_step.
struct Rows {
    __device__ float load(const Tensor& t, int64_t row, int64_t k) const {
        return row < rows && k < inner ? load_value(t, begin + row * row_step + k * k_step) : 0.f;
    }
    int64_t begin, rows, inner, row_step, k_step;
};
__device__ Rows tokens_of(const Tensor& x, int64_t group) {
    return {element(x, 0, group), x.shape[0], x.shape[2], x.stride_elems[0], x.stride_elems[2]};
}
__device__ Rows weights_of(const Tensor& w, int64_t group) {
    return {element(w, group), w.shape[1], w.shape[2], w.stride_elems[1], w.stride_elems[2]};
}

template <bool AlongK>
__global__ void __launch_bounds__(kThreads)
    few_kernel(const __grid_constant__ Tensor x, const __grid_constant__ Tensor w,
               const __grid_constant__ Tensor out, int64_t tiles) {
    const int warp = int(threadIdx.x / 32), lane = int(threadIdx.x % 32);
    const int64_t group = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    const Rows tokens = tokens_of(x, group), weights = weights_of(w, group);
    const int64_t n = AlongK ? tile * kWarps + warp : tile * 32 + lane;
    float sum[kFew] = {};
    for (int64_t k = AlongK ? lane : warp; k < tokens.inner; k += AlongK ? 32 : kWarps) {
        const float weight = weights.load(w, n, k);
#pragma unroll
        for (int t = 0; t < kFew; ++t) sum[t] += tokens.load(x, t, k) * weight;
    }
    if constexpr (AlongK) {
#pragma unroll
        for (int t = 0; t < kFew; ++t) {
            const float total = warp_sum(sum[t]);
            if (lane == 0 && t < tokens.rows && n < weights.rows)
                store_value(out, element(out, t, group, n), total);
        }
    } else {
        __shared__ float parts[kWarps][kFew][32];
#pragma unroll
        for (int t = 0; t < kFew; ++t) parts[warp][t][lane] = sum[t];
        __syncthreads();
        float total = 0;
        for (int part = 0; part < kWarps; ++part) total += parts[part][warp][lane];
        if (warp < tokens.rows && n < weights.rows) store_value(out, element(out, warp, group, n), total);
    }
}

// Loads kTile rows x kDepth of k into shared memory, zeros past the ends; neighbouring threads along the
// dense dimension.
__device__ void load_tile(float (*tile)[kTile + 4], const Tensor& t, const Rows& rows, int64_t first,
                          int64_t k0) {
    const bool along_k = rows.k_step <= rows.row_step;
    for (int i = int(threadIdx.x); i < kTile * kDepth; i += kThreads) {
        const int row = along_k ? i / kDepth : i % kTile, k = along_k ? i % kDepth : i / kTile;
        tile[k][row] = rows.load(t, first + row, k0 + k);
    }
}

__global__ void __launch_bounds__(kThreads)
    tile_kernel(const __grid_constant__ Tensor x, const __grid_constant__ Tensor w,
                const __grid_constant__ Tensor out, int64_t token_tiles, int64_t outer_tiles) {
    __shared__ float xs[kDepth][kTile + 4], ws[kDepth][kTile + 4];
    const int64_t group = blockIdx.x / (token_tiles * outer_tiles),
                  tile = blockIdx.x % (token_tiles * outer_tiles);
    const int64_t first_token = tile / outer_tiles * kTile, first_outer = tile % outer_tiles * kTile;
    const Rows tokens = tokens_of(x, group), weights = weights_of(w, group);
    const int across = int(threadIdx.x) % (kTile / kSide), down = int(threadIdx.x) / (kTile / kSide);
    float sum[kSide][kSide] = {};
    for (int64_t k0 = 0; k0 < tokens.inner; k0 += kDepth) {
        load_tile(xs, x, tokens, first_token, k0);
        load_tile(ws, w, weights, first_outer, k0);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kDepth; ++k)
#pragma unroll
            for (int i = 0; i < kSide; ++i)
#pragma unroll
                for (int j = 0; j < kSide; ++j)
                    sum[i][j] += xs[k][down * kSide + i] * ws[k][across + j * (kTile / kSide)];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kSide; ++i)
#pragma unroll
        for (int j = 0; j < kSide; ++j) {
            const int64_t t = first_token + down * kSide + i, n = first_outer + across + j * (kTile / kSide);
            if (t < tokens.rows && n < weights.rows) store_value(out, element(out, t, group, n), sum[i][j]);
        }
}

}  // namespace

}  // namespace cuda

void run_cuda_project_loops(const smla_project_args& args, const Env& env) {
    const int64_t tokens = args.x.shape[0], groups = args.w.shape[0], outer = args.w.shape[1];
    if (tokens == 0) return;
    if (tokens <= cuda::kFew && !env.batch_invariant) {
        const bool along_k = args.w.stride_elems[2] == 1;
        const int64_t tiles = ceil_div(outer, along_k ? cuda::kWarps : 32);
        cuda::launch(along_k ? cuda::few_kernel<true> : cuda::few_kernel<false>, groups * tiles,
                     cuda::kThreads, 0, env, args.x, args.w, args.out, tiles);
        return;
    }
    const int64_t token_tiles = ceil_div(tokens, cuda::kTile), outer_tiles = ceil_div(outer, cuda::kTile);
    cuda::launch(cuda::tile_kernel, groups * token_tiles * outer_tiles, cuda::kThreads, 0, env, args.x,
                 args.w, args.out, token_tiles, outer_tiles);
}

}  // namespace smla
