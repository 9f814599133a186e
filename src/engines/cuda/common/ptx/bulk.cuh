// Bulk copies of sm_90: one instruction of one thread copies many bytes, which an mbarrier counts.
#pragma once

#include <cstdint>

namespace smla::cuda {

// Copies `bytes`, a multiple of 16, to shared memory; both addresses are multiples of 16. The phase of the
// mbarrier must expect them.
__device__ inline void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t mbarrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(mbarrier)
        : "memory");
}
// Copies a box of a tensor map (common/tensor_map.h) that begins at (0, row, depth) to shared memory; the
// address is a multiple of 1024. The mbarrier counts the whole box.
__device__ inline void copy_box(uint32_t to, const void* map, int row, int depth, uint32_t mbarrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
        "%4}], [%5];" ::"r"(to),
        "l"(map), "r"(0), "r"(row), "r"(depth), "r"(mbarrier)
        : "memory");
}
// A policy for what is read once: it leaves L2 before all else, so what others wrote there stays and need not
// be written to memory meanwhile. All else is read without one: `evict_normal` is slower than none.
__device__ inline uint64_t policy_of_read_once() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// The same two with a policy.
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
// Asks L2 for `bytes`, a multiple of 16; so is the address.
__device__ inline void prefetch_bulk(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// Asks L2 for the 128 bytes around an address.
__device__ inline void prefetch_line(const void* at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
}

}  // namespace smla::cuda
