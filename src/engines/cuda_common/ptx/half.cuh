// 16-bit operands of mma.sync of either kind, and small floats that become them exactly.
#pragma once

#include "engines/cuda_common/ptx/math.cuh"
#include "engines/cuda_common/ptx/mma.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace smla::cuda {

enum class Half { f16, bf16 };

// mma.cuh's m16n8k16, on operands of either kind.
template <Half Type>
__device__ inline void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (Type == Half::bf16) mma_bf16(c, a, b0, b1);
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t f16_to_bf16(uint32_t pair) { return pack_bf16(f16_low(pair), f16_high(pair)); }

// The four e4m3 codes of a word as two pairs, the first code in the low half of `low`; NaN stays NaN.
template <Half Type>
__device__ inline void e4m3_pairs(uint32_t codes, uint32_t& low, uint32_t& high) {
    e4m3_to_f16(codes, low, high);
    if constexpr (Type == Half::bf16) low = f16_to_bf16(low), high = f16_to_bf16(high);
}

__device__ inline __nv_bfloat162 bf16_pair(uint32_t bits) {
    return *reinterpret_cast<__nv_bfloat162*>(&bits);
}

// Two e2m1 codes in the low 8 bits, the first in the low nibble, times an e8m0 scale, as bf16: exact but for
// what leaves its range. The bits of a code are those of a bf16 2^126 times smaller.
__device__ inline uint32_t e2m1_to_bf16(uint32_t codes, uint32_t e8m0) {
    const uint32_t apart = (codes & 0xfu) | (codes & 0xf0u) << 12;
    const uint32_t placed = (apart & 0x00070007u) << 6 | (apart & 0x00080008u) << 12;
    const uint32_t scale = e8m0 == 255 ? 0x7fc0u : e8m0 == 0 ? 0x0040u : e8m0 << 7;
    const __nv_bfloat162 value =
        __hmul2(__hmul2(bf16_pair(placed), bf16_pair(0x7e807e80u)), bf16_pair(scale | scale << 16));
    return *reinterpret_cast<const uint32_t*>(&value);
}

}  // namespace smla::cuda
