// Rates of wgmma with both operands in shared memory: two warpgroups per multiprocessor, no loads.
#include "engines/cuda/common/check.h"
#include "engines/cuda/score/sm90/wgmma.cuh"

#include "cuda_peaks.h"

namespace smla::bench {

namespace {

constexpr int kSteps = 2048, kThreads = 256;
// A has 64 rows of 128 bytes for each warpgroup; B has 256 rows of 128 bytes for both warpgroups.
constexpr int kSharedBytes = 2 * cuda::kTileBytes + 4 * cuda::kTileBytes + 1024;

// Fills shared memory with values of both signs, so that sums stay small and the inputs of the tensor cores
// toggle as in real products. random: mask of the random bits of 4 bytes. exponent: their exponent bits.
__device__ uint32_t fill_shared(char* shared, uint32_t random, uint32_t exponent) {
    const uint32_t at = (uint32_t(__cvta_generic_to_shared(shared)) + 1023) / 1024 * 1024;
    const uint32_t begin = at - uint32_t(__cvta_generic_to_shared(shared));
    for (uint32_t i = threadIdx.x; i < uint32_t(6 * cuda::kTileBytes) / 4; i += kThreads)
        reinterpret_cast<uint32_t*>(shared + begin)[i] = ((i * 2654435761u) >> 3 & random) | exponent;
    cuda::fence_async_proxy();
    __syncthreads();
    return at;
}

template <int Values>
__device__ void keep(const float (&sums)[Values], float* out) {
    float sum = 0;
    for (int i = 0; i < Values; ++i) sum += sums[i];
    if (sum == 12345.678f) *out = sum;  // never true, but the compiler cannot prove it
}

__global__ void __launch_bounds__(kThreads) multiply_bf16(float* out) {
    extern __shared__ char shared[];
    const uint32_t at = fill_shared(shared, 0x807f807f, 0x3f003f00);
    const uint64_t a = cuda::k_major(at + threadIdx.x / 128 * cuda::kTileBytes),
                   b = cuda::n_major(at + 2 * cuda::kTileBytes);
    float sums[128] = {};
    for (int step = 0; step < kSteps; ++step) {
        cuda::wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k)
            cuda::wgmma_n256<cuda::Half::bf16>(sums, cuda::advanced(a, 32 * k), cuda::advanced(b, 2048 * k));
        cuda::wgmma_commit();
        cuda::wgmma_wait<0>();
    }
    keep(sums, out);
}

__global__ void __launch_bounds__(kThreads) multiply_e4m3(float* out) {
    extern __shared__ char shared[];
    const uint32_t at = fill_shared(shared, 0x87878787, 0x30303030);
    const uint64_t a = cuda::k_major(at + threadIdx.x / 128 * cuda::kTileBytes),
                   b = cuda::k_major(at + 2 * cuda::kTileBytes);
    float sums[64] = {};
    for (int step = 0; step < kSteps; ++step) {
        cuda::wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k)
            cuda::sm90::wgmma_e4m3(sums, cuda::advanced(a, 32 * k), cuda::advanced(b, 32 * k), true);
        cuda::wgmma_commit();
        cuda::wgmma_wait<0>();
    }
    keep(sums, out);
}

// flops: operations of one instruction of one warpgroup.
double tflops_of(void (*kernel)(float*), double flops) {
    int device = 0, major = 0, count = 0;
    SMLA_CUDA_CALL(cudaGetDevice(&device));
    SMLA_CUDA_CALL(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (major != 9) return 0;
    SMLA_CUDA_CALL(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    SMLA_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    float* out = nullptr;
    SMLA_CUDA_CALL(cudaMalloc(&out, 4));
    const double ms = best_ms([&] {
        kernel<<<count, kThreads, kSharedBytes>>>(out);
        SMLA_CUDA_CALL(cudaGetLastError());
    });
    cudaFree(out);
    return double(count) * 2 * kSteps * 4 * flops / ms * 1e-9;
}

}  // namespace

double wgmma_bf16_peak_tflops() { return tflops_of(multiply_bf16, 2. * 64 * 256 * 16); }
double wgmma_e4m3_peak_tflops() { return tflops_of(multiply_e4m3, 2. * 64 * 128 * 32); }

}  // namespace smla::bench
