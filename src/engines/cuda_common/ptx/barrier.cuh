// Barriers of part of a block: named ones, at which a set of warps meets, and mbarriers in shared memory,
// where arriving and waiting are two things. All of sm_80.
#pragma once

#include <cstdint>

namespace smla::cuda {

// `Threads` threads, whole warps, meet at barrier `id`, 1 to 15.
template <int Threads>
__device__ inline void named_barrier(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}
// Comes to the barrier and goes on: others of the `Threads` wait for it.
template <int Threads>
__device__ inline void named_barrier_arrive(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}

// Phase p of an mbarrier is over once `arrivals` threads have arrived in it; the next begins at once.
__device__ inline void mbarrier_init(uint32_t at, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_arrive(uint32_t at) {
    asm volatile("{.reg .b64 state;\n mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(at) : "memory");
}
// Arrives when all cp.async that this thread has issued so far are done.
__device__ inline void mbarrier_arrive_after_copies(uint32_t at) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
}
// Whether a phase of this parity is over. At most one phase may have begun since.
__device__ inline bool mbarrier_over(uint32_t at, uint32_t parity) {
    uint32_t over;
    asm volatile(
        "{.reg .pred over;\n"
        "mbarrier.test_wait.parity.shared.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;}"
        : "=r"(over)
        : "r"(at), "r"(parity)
        : "memory");
    return over != 0;
}
// Waits until it is.
__device__ inline void mbarrier_wait(uint32_t at, uint32_t parity) {
    uint32_t over;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "{.reg .pred over;\n"
            "mbarrier.try_wait.parity.shared.b64 over, [%1], %2;\n"
            "selp.u32 %0, 1, 0, over;}"
            : "=r"(over)
            : "r"(at), "r"(parity)
            : "memory");
#else
        over = mbarrier_over(at, parity);
#endif
    } while (!over);
}

}  // namespace smla::cuda
