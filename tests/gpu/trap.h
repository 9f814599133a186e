// Kernels that end this process's use of the GPU, as a fault in another library's kernel does.
#pragma once

#include <cuda_runtime.h>

namespace gpu {

// Runs for so long, then traps. Every later CUDA call of the process may fail.
cudaError_t trap(cudaStream_t stream, int milliseconds);

// Waits for an mbarrier at which nobody arrives: for ever, in builds without SMLA_CUDA_BOUNDED_WAITS.
cudaError_t wait_for_nobody(cudaStream_t stream);

}  // namespace gpu
