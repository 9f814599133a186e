#include "trap.h"

#include "engines/cuda/common/ptx/barrier.cuh"

namespace gpu {

namespace {

__global__ void trap_kernel(unsigned long long nanoseconds) {
    unsigned long long start = 0, now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
    __trap();
}

__global__ void waiting_kernel() {
    __shared__ uint64_t barrier;
    const auto at = uint32_t(__cvta_generic_to_shared(&barrier));
    smla::cuda::mbarrier_init(at, 1);
    smla::cuda::mbarrier_wait(at, 0);
}

}  // namespace

cudaError_t wait_for_nobody(cudaStream_t stream) {
    waiting_kernel<<<1, 1, 0, stream>>>();
    return cudaGetLastError();
}

cudaError_t trap(cudaStream_t stream, int milliseconds) {
    trap_kernel<<<1, 1, 0, stream>>>(1000000ull * static_cast<unsigned long long>(milliseconds));
    return cudaGetLastError();
}

}  // namespace gpu
