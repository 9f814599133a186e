// Barriers for parts of a block, for sm_80 and later: named barriers, and mbarriers in shared memory.
#pragma once

#include <cstdint>

#ifdef SMLA_CUDA_BOUNDED_WAITS  // called by assert(); defined in the driver
extern "C" __device__ void __assertfail(const void* message, const void* file, unsigned line,
                                        const void* function, size_t character_bytes);
#endif

namespace smla::cuda {

// Arrives at named barrier `id` (1 to 15) and waits until `Threads` threads, whole warps, have arrived.
template <int Threads>
__device__ inline void named_barrier(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}
// Arrives without waiting.
template <int Threads>
__device__ inline void named_barrier_arrive(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}

// Arrives and waits as named_barrier does. Returns whether any of the threads passed true.
template <int Threads>
__device__ inline bool named_barrier_or(int id, bool value) {
    uint32_t any;
    asm volatile(
        "{.reg .pred own, all;\n"
        "setp.ne.u32 own, %1, 0;\n"
        "barrier.cta.red.or.pred all, %2, %3, own;\n"
        "selp.u32 %0, 1, 0, all;}"
        : "=r"(any)
        : "r"(uint32_t(value)), "r"(id), "n"(Threads)
        : "memory");
    return any != 0;
}

// A phase of an mbarrier completes with its `arrivals`-th arrival; then the next phase begins.
__device__ inline void mbarrier_init(uint32_t at, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_arrive(uint32_t at) {
    asm volatile("{.reg .b64 state;\n mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(at) : "memory");
}
// Arrives `times` times with one instruction.
__device__ inline void mbarrier_arrive(uint32_t at, int times) {
    asm volatile("{.reg .b64 state;\n mbarrier.arrive.shared.b64 state, [%0], %1;}" ::"r"(at), "r"(times)
                 : "memory");
}
// Arrives when all cp.async that this thread has issued are complete.
__device__ inline void mbarrier_arrive_after_copies(uint32_t at) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
}
// Returns whether the phase of this parity has completed. The barrier must be in that phase or the next.
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
// Time limit of a wait in builds with SMLA_CUDA_BOUNDED_WAITS. After 10 seconds the kernel stops as after a
// failed assertion. The message has the file, block, thread and, as line, the barrier's shared memory offset.
struct WaitLimit {
#ifdef SMLA_CUDA_BOUNDED_WAITS
    unsigned long long begun_ns = 0;

    __device__ void check(uint32_t at, uint32_t parity) {
        unsigned long long now_ns;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_ns));
        if (begun_ns == 0) begun_ns = now_ns;
        if (now_ns - begun_ns > 10'000'000'000ull)
            __assertfail("an mbarrier is complete within 10 s (line: its offset in shared memory)",
                         __BASE_FILE__, at, parity ? "odd phase" : "even phase", sizeof(char));
    }
#else
    __device__ void check(uint32_t, uint32_t) {}
#endif
};
__device__ inline void mbarrier_wait(uint32_t at, uint32_t parity) {
    uint32_t over;
    WaitLimit limit;
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
        if (!over) limit.check(at, parity);
    } while (!over);
}

}  // namespace smla::cuda
