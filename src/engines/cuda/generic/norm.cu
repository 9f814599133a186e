// norm: out = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias; the mean is 0 for rms.
//
// A warp processes a row of up to 1024 values, eight rows per block; a block of eight warps processes a
// longer row. A row is read three times (mean, squares, result), twice from L1, with kBatch values per thread
// in flight. Limit: memory for many rows, latency for few.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/generic/generic.h"

namespace smla::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kBatch = 16;  // values of a thread in flight

// Returns the sum over the row, in every thread of the row.
template <int RowThreads>
__device__ float row_sum(float value) {
    if constexpr (RowThreads == 32) {
        return warp_sum(value);
    } else {
        __shared__ float scratch[RowThreads / 32];
        return block_sum(value, scratch);
    }
}

// Calls use(d, values, count) for batches of kBatch of the thread's values of a row: d, d + RowThreads, ...
template <int RowThreads, class Use>
__device__ void each_batch(const Tensor& x, int64_t row_at, Use use) {
    const int width = int(x.shape[2]);
    for (int d = int(threadIdx.x % RowThreads); d < width; d += kBatch * RowThreads) {
        const int count = min(kBatch, count_below(width, d, RowThreads));
        float values[kBatch];
        load_values(x, row_at + d * x.stride_elems[2], RowThreads * x.stride_elems[2], count, values);
        use(d, values, count);
    }
}

template <int RowThreads>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const __grid_constant__ Tensor x, const __grid_constant__ Tensor weight,
                const __grid_constant__ Tensor bias, const __grid_constant__ Tensor out, bool centre,
                float eps) {
    follow_grid_before();
    const auto groups = unsigned(x.shape[1]);
    const unsigned row = blockIdx.x * (kThreads / RowThreads) + threadIdx.x / RowThreads;
    if (row >= x.shape[0] * groups) return;  // returns whole warps, or the whole block
    const int64_t in = element(x, row / groups, row % groups), to = element(out, row / groups, row % groups);
    const auto width = float(x.shape[2]);

    float mean = 0;
    if (centre) {
        each_batch<RowThreads>(x, in, [&](int, const auto& values, int) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) mean += values[i];
        });
        mean = row_sum<RowThreads>(mean) / width;
    }
    float square = 0;
    each_batch<RowThreads>(x, in, [&](int, const auto& values, int count) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
            if (i < count) square += (values[i] - mean) * (values[i] - mean);
    });
    const float factor = 1.f / sqrtf(row_sum<RowThreads>(square) / width + eps);
    // out may be x, because from here on each thread reads only elements that it writes
    each_batch<RowThreads>(x, in, [&](int d, const auto& values, int count) {
        float weights[kBatch], biases[kBatch];
        const auto load = [&](const Tensor& t, float(&into)[kBatch]) {
            if (present(t)) load_values(t, element(t, d), RowThreads * t.stride_elems[0], count, into);
        };
        load(weight, weights);
        load(bias, biases);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            float v = (values[i] - mean) * factor;
            if (present(weight)) v *= weights[i];
            if (present(bias)) v += biases[i];
            if (i < count) store_value(out, to + (d + i * RowThreads) * out.stride_elems[2], v);
        }
    });
}

}  // namespace

void run_cuda_norm(const smla_norm_args& args, const Env& env) {
    const int64_t rows = args.x.shape[0] * args.x.shape[1];
    const bool narrow = args.x.shape[2] <= 1024;
    const int64_t blocks = narrow ? ceil_div(rows, kThreads / 32) : rows;
    const auto kernel = narrow ? norm_kernel<32> : norm_kernel<kThreads>;
    launch_early(kernel, blocks, kThreads, 0, env, args.x, args.weight, args.bias, args.out,
                 args.kind == SMLA_NORM_LAYER, float(args.eps));
}

}  // namespace smla::cuda
