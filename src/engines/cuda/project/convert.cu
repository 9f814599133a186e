// Conversions around cuBLASLt: x to the weight's dtype, and sums of bf16 parts to out.
//
// A block processes a row (token, group); neighboring threads process neighboring values. Limit: memory. With
// f32 x and bf16 weights, splitting a value of x reads 4 bytes and writes 6. Adding up the parts of a result
// reads 12 bytes and writes 2 or 4.
#include "core/tensor.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/project/project.h"
#include "engines/cuda/project/split.h"

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    split_kernel(const __grid_constant__ Tensor x, smla_dtype operand, int parts, void* to) {
    follow_grid_before();
    const int64_t width = x.shape[2], row = blockIdx.x, all = x.shape[0] * x.shape[1] * width;
    const auto groups = unsigned(x.shape[1]);
    const int64_t from = element(x, blockIdx.x / groups, blockIdx.x % groups);
    for (int64_t k = threadIdx.x; k < width; k += kThreads) {
        float value = load_value(x, from + k);
        const int64_t at = row * width + k;
        if (operand == SMLA_F32) {
            static_cast<float*>(to)[at] = value;
            continue;
        }
        for (int part = 0; part < parts; ++part)
            static_cast<uint16_t*>(to)[part * all + at] = take_bf16(value);
    }
}

// Adds up the parts, the smallest first.
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* sums, int parts, const __grid_constant__ Tensor out) {
    follow_grid_before();
    const int64_t width = out.shape[2], row = blockIdx.x, all = out.shape[0] * out.shape[1] * width;
    const auto groups = unsigned(out.shape[1]);
    const int64_t to = element(out, blockIdx.x / groups, blockIdx.x % groups);
    for (int64_t n = threadIdx.x; n < width; n += kThreads) {
        float sum = 0;
        for (int part = parts - 1; part >= 0; --part) sum += sums[part * all + row * width + n];
        store_value(out, to + n, sum);
    }
}

}  // namespace

}  // namespace cuda

void run_cuda_split(const Tensor& x, smla_dtype operand, int parts, void* to, const Env& env) {
    cuda::launch_early(cuda::split_kernel, x.shape[0] * x.shape[1], cuda::kThreads, 0, env, x, operand, parts,
                       to);
}

void run_cuda_add_parts(const float* sums, int parts, const Tensor& out, const Env& env) {
    cuda::launch_early(cuda::add_parts_kernel, out.shape[0] * out.shape[1], cuda::kThreads, 0, env, sums,
                       parts, out);
}

}  // namespace smla
