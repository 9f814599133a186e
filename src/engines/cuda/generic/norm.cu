// norm: out = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias; the mean is 0 for rms.
//
// A row of up to 1024 values takes a warp, eight rows per block; a longer one takes a block of eight warps. A
// row is read three times (mean, squares, result), twice from cache: registers for whole rows would save
// that, but tie the kernel to widths. Limit: memory for many rows, latency for few.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/generic/generic.h"

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 256;

// Sum over the row, the same in every thread that works on it.
template <int RowThreads>
__device__ float row_sum(float value) {
    if constexpr (RowThreads == 32) {
        return warp_sum(value);
    } else {
        __shared__ float scratch[RowThreads / 32];
        return block_sum(value, scratch);
    }
}

template <int RowThreads>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(Tensor x, Tensor weight, Tensor bias, Tensor out, bool centre, float eps) {
    const int64_t width = x.shape[2];
    const auto groups = unsigned(x.shape[1]);
    const unsigned row = blockIdx.x * (kThreads / RowThreads) + threadIdx.x / RowThreads;
    if (row >= x.shape[0] * groups) return;  // whole warps, or the whole block
    const int first = int(threadIdx.x % RowThreads);
    const int64_t in = element(x, row / groups, row % groups), to = element(out, row / groups, row % groups);
    const int64_t x_step = x.stride_elems[2], out_step = out.stride_elems[2];

    float mean = 0;
    if (centre) {
        for (int64_t d = first; d < width; d += RowThreads) mean += load_value(x, in + d * x_step);
        mean = row_sum<RowThreads>(mean) / float(width);
    }
    float square = 0;
    for (int64_t d = first; d < width; d += RowThreads) {
        const float v = load_value(x, in + d * x_step) - mean;
        square += v * v;
    }
    const float factor = 1.f / sqrtf(row_sum<RowThreads>(square) / float(width) + eps);
    // out may be x: from here on each thread reads only what it writes itself
    for (int64_t d = first; d < width; d += RowThreads) {
        float v = (load_value(x, in + d * x_step) - mean) * factor;
        if (present(weight)) v *= load_value(weight, element(weight, d));
        if (present(bias)) v += load_value(bias, element(bias, d));
        store_value(out, to + d * out_step, v);
    }
}

}  // namespace

}  // namespace cuda

void run_cuda_norm(const smla_norm_args& args, const Env& env) {
    const int64_t rows = args.x.shape[0] * args.x.shape[1];
    const bool narrow = args.x.shape[2] <= 1024;
    const int64_t blocks = narrow ? ceil_div(rows, cuda::kThreads / 32) : rows;
    const auto kernel = narrow ? cuda::norm_kernel<32> : cuda::norm_kernel<cuda::kThreads>;
    cuda::launch(kernel, blocks, cuda::kThreads, 0, env, args.x, args.weight, args.bias, args.out,
                 args.kind == SMLA_NORM_LAYER, float(args.eps));
}

}  // namespace smla
