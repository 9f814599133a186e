// cp.async: copies from global to shared memory that pass no register and that a thread does not wait for. With
// `valid` false the bytes become zeros and nothing is read. Addresses of shared memory are 32-bit.
#pragma once

#include <cstdint>

namespace smla::cuda {

__device__ inline uint32_t shared_address(const void* shared) {
    return uint32_t(__cvta_generic_to_shared(shared));
}

template <int Bytes>  // 4, 8 or 16, which both addresses must be multiples of; 16 go past L1
__device__ inline void cp_async(uint32_t to, const void* from, bool valid) {
    if constexpr (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Bytes),
                     "r"(valid ? Bytes : 0)
                     : "memory");
}
template <int Bytes>
__device__ inline void cp_async(void* to, const void* from, bool valid = true) {
    cp_async<Bytes>(shared_address(to), from, valid);
}
__device__ inline void cp_async_16(uint32_t to, const void* from, bool valid) { cp_async<16>(to, from, valid); }
__device__ inline void cp_async_8(uint32_t to, const void* from, bool valid) { cp_async<8>(to, from, valid); }

__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `Pending` groups of this thread are under way.
template <int Pending>
__device__ inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace smla::cuda
