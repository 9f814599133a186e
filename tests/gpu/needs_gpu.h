// Whether there is a GPU to test on. scripts/gpu_check takes the words "no GPU: " for a failure.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>

namespace gpu {

inline std::string why_none() {
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess) return cudaGetErrorString(result);
    return count ? "" : "no device";
}
#define SMLA_NEEDS_GPU() \
    if (const std::string why = gpu::why_none(); !why.empty()) GTEST_SKIP() << "no GPU: " << why

}  // namespace gpu
