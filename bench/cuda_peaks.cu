#include "cuda_peaks.h"

#include "engines/cuda/common/check.h"
#include "engines/cuda/common/ptx/mma.cuh"

#include <algorithm>

namespace smla::bench {

namespace {

constexpr int kSteps = 4096, kChains = 16;  // independent products per warp

__global__ void __launch_bounds__(256) multiply(float* out, uint32_t seed) {
    float c[kChains][4] = {};
    uint32_t a[4], b[2];
    for (int i = 0; i < 4; ++i) a[i] = seed * (threadIdx.x + 17 * i) % 0x3f803f80u;
    for (int i = 0; i < 2; ++i) b[i] = seed * (threadIdx.x + 31 * i) % 0x3f803f80u;
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int chain = 0; chain < kChains; ++chain) cuda::mma_bf16(c[chain], a, b[0], b[1]);
    float sum = 0;
    for (int chain = 0; chain < kChains; ++chain) sum += c[chain][0] + c[chain][3];
    if (sum == 12345.678f) *out = sum;  // never, but the compiler cannot know
}

__global__ void nothing() {}

int processors() {
    int device = 0, count = 0;
    SMLA_CUDA_CALL(cudaGetDevice(&device));
    SMLA_CUDA_CALL(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

}  // namespace

double best_ms(const std::function<void()>& work) {
    cudaEvent_t begin, end;
    SMLA_CUDA_CALL(cudaEventCreate(&begin));
    SMLA_CUDA_CALL(cudaEventCreate(&end));
    float best = 1e9f;
    for (int i = 0; i < 8; ++i) {
        SMLA_CUDA_CALL(cudaEventRecord(begin));
        work();
        SMLA_CUDA_CALL(cudaEventRecord(end));
        SMLA_CUDA_CALL(cudaEventSynchronize(end));
        float ms = 0;
        SMLA_CUDA_CALL(cudaEventElapsedTime(&ms, begin, end));
        best = std::min(best, ms);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return double(best);
}

std::string pci_bus_id() {
    int device = 0;
    char id[32] = "";
    SMLA_CUDA_CALL(cudaGetDevice(&device));
    SMLA_CUDA_CALL(cudaDeviceGetPCIBusId(id, sizeof id, device));
    return id;
}

double mma_peak_tflops() {
    float* out = nullptr;
    SMLA_CUDA_CALL(cudaMalloc(&out, 4));
    const int blocks = 2 * processors();
    const double ms = best_ms([&] {
        multiply<<<blocks, 256>>>(out, 2654435761u);
        SMLA_CUDA_CALL(cudaGetLastError());
    });
    cudaFree(out);
    return double(blocks) * 8 * kSteps * kChains * (2. * 16 * 8 * 16) / ms * 1e-9;
}

double copy_peak_gbytes() {
    constexpr size_t kBytes = size_t(1) << 30;
    char *from = nullptr, *to = nullptr;
    SMLA_CUDA_CALL(cudaMalloc(&from, kBytes));
    SMLA_CUDA_CALL(cudaMalloc(&to, kBytes));
    const double ms =
        best_ms([&] { SMLA_CUDA_CALL(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice)); });
    cudaFree(from);
    cudaFree(to);
    return 2. * double(kBytes) / ms * 1e-6;
}

void launch_nothing() {
    cudaLaunchConfig_t config{};
    config.gridDim = config.blockDim = dim3(1);
    SMLA_CUDA_CALL(cudaLaunchKernelEx(&config, nothing));
}

}  // namespace smla::bench
