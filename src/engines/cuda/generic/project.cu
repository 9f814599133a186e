// project without a library: out[t,g,n] = sum_k x[t,g,k] w[g,n,k], f32 sums, any dtypes and strides.
//
// A block computes 64 tokens x 64 n, 16 k per step, through shared memory [16][64 + 4] for each operand (two
// barriers per step), with 4 x 4 results per thread in registers. Mixed dtypes and f32 products exclude
// tensor cores. A sum's order does not depend on the number of tokens. Limit: load_value's switch and f32
// units. The kernel runs only if cuBLASLt is missing or lacks the call.
#include "core/tensor.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/generic/generic.h"

namespace smla::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64, kDepth = 16, kSide = 4;  // per block; per thread
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

// Loads kTile rows x kDepth of k into shared memory, zeros past the ends; neighboring threads load along the
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
    follow_grid_before();
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

void run_cuda_project_loops(const smla_project_args& args, const Env& env) {
    const int64_t tokens = args.x.shape[0], groups = args.w.shape[0], outer = args.w.shape[1];
    if (tokens == 0) return;
    const int64_t token_tiles = ceil_div(tokens, kTile), outer_tiles = ceil_div(outer, kTile);
    launch_early(tile_kernel, groups * token_tiles * outer_tiles, kThreads, 0, env, args.x, args.w, args.out,
                 token_tiles, outer_tiles);
}

}  // namespace smla::cuda
