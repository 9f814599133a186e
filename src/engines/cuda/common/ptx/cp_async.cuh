// cp.async: asynchronous copies from global to shared memory (32-bit addresses) that bypass registers.
#pragma once

#include <cstdint>

namespace smla::cuda {

__device__ inline uint32_t shared_address(const void* shared) {
    return uint32_t(__cvta_generic_to_shared(shared));
}
// Copies 16 aligned bytes, not cached in L1. If not `valid`, writes zeros and does not read `from`.
__device__ inline void cp_async_16(uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ inline void cp_async_8(uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0)
                 : "memory");
}
__device__ inline void cp_async_4(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ inline void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Waits until at most `Pending` groups of this thread are incomplete.
template <int Pending>
__device__ inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace smla::cuda
