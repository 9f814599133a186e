// cp.async: copies from global to shared memory that a thread does not wait for. With `valid` false the bytes
// become zeros and nothing is read.
#pragma once

#include <cstdint>

namespace smla::cuda {

template <int Bytes>  // 4, 8 or 16, which both addresses must be multiples of
__device__ inline void cp_async(void* shared, const void* global, bool valid = true) {
    const uint32_t to = uint32_t(__cvta_generic_to_shared(shared));
    const int from = valid ? Bytes : 0;
    if constexpr (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(Bytes),
                     "r"(from)
                     : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending>  // waits until at most so many of this thread's groups are under way
__device__ inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace smla::cuda
