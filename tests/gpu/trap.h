// A kernel that ends this process's use of the GPU, as a fault in another library's kernel does.
#pragma once

#include <cuda_runtime.h>

namespace gpu {

// Runs for so long, then traps. Every later CUDA call of the process may fail.
cudaError_t trap(cudaStream_t stream, int milliseconds);

}  // namespace gpu
