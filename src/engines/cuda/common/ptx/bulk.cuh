// Bulk copies of sm_90: one instruction of one thread copies many bytes, which an mbarrier counts.
#pragma once

#include <cstdint>

namespace smla::cuda {

// Copies `bytes` to shared memory; the size and both addresses are multiples of 16. The phase of the mbarrier
// must expect the bytes.
__device__ inline void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t mbarrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(mbarrier)
        : "memory");
}
// Copies a box of a tensor map (common/tensor_map.h) that begins at (0, row, depth) to shared memory, at a
// multiple of 1024. The mbarrier counts the bytes of the whole box.
__device__ inline void copy_box(uint32_t to, const void* map, int row, int depth, uint32_t mbarrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
        "%4}], [%5];" ::"r"(to),
        "l"(map), "r"(0), "r"(row), "r"(depth), "r"(mbarrier)
        : "memory");
}
// Returns an L2 policy for data that is read once and evicted first, so that lines that others wrote need not
// be written back early. Other reads use no policy, because `evict_normal` is slower than none.
__device__ inline uint64_t policy_of_read_once() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// copy_bulk and copy_box with an L2 policy.
__device__ inline void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t mbarrier,
                                 uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(mbarrier), "l"(policy)
        : "memory");
}
__device__ inline void copy_box(uint32_t to, const void* map, int row, int depth, uint32_t mbarrier,
                                uint64_t policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(0), "r"(row), "r"(depth), "r"(mbarrier), "l"(policy)
        : "memory");
}
__device__ inline void prefetch_map(const void* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Prefetches `bytes` into L2; the size and the address are multiples of 16.
__device__ inline void prefetch_bulk(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ inline void prefetch_line(const void* at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
}

}  // namespace smla::cuda
