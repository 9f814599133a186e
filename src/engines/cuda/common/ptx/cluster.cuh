// Clusters of sm_90 and later: blocks that run together and access each other's shared memory. Functions for
// kernels of every architecture do nothing before sm_90, where no cluster is launched.
#pragma once

#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda {

__device__ inline uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Returns the shared::cluster address in block `rank` that corresponds to `at` in this block.
__device__ inline uint32_t in_block(uint32_t at, uint32_t rank) {
    uint32_t out = at;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(at), "r"(rank));
#endif
    return out;
}
// Arrives at the barrier of all threads of the cluster.
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// Arrives without ordering memory, for mbarriers after fence_mbarrier_init().
__device__ inline void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ inline void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}
// Stores to shared memory of any block of the cluster.
__device__ inline void store_in_cluster(uint32_t at, float value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(value) : "memory");
#endif
}
// Makes initialized mbarriers visible to the other blocks after the next cluster_sync.
__device__ inline void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives at an mbarrier of any block of the cluster. The arrival is relaxed, because a release to another
// block costs about 1000 cycles; this suffices to free memory that only completed wgmma have read.
__device__ inline void mbarrier_arrive_in_cluster(uint32_t at) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}
// Arrives at an mbarrier of this block, and makes its phase expect `bytes` of bulk copies or async stores.
__device__ inline void mbarrier_arrive_expect(uint32_t at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ inline void min_in_cluster(uint32_t at, uint32_t value) {
    asm volatile("red.relaxed.cluster.shared::cluster.min.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
// Stores to shared memory of a block of the cluster. The mbarrier of that block counts the bytes.
__device__ inline void store_async(uint32_t to, uint32_t mbarrier, const uint4& value) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            to),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(mbarrier)
        : "memory");
}
__device__ inline void store_async(uint32_t to, uint32_t mbarrier, const uint2& value) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
        "r"(value.x), "r"(value.y), "r"(mbarrier)
        : "memory");
}
__device__ inline void store_async(uint32_t to, uint32_t mbarrier, uint32_t value) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
                 "r"(value), "r"(mbarrier)
                 : "memory");
}

}  // namespace smla::cuda
