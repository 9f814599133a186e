// 16-bit operands of mma.sync (f16 or bf16) and exact conversions of small floats to these types.
#pragma once

#include "engines/cuda/common/ptx/math.cuh"
#include "engines/cuda/common/ptx/mma.cuh"

#include <cuda_bf16.h>

namespace smla::cuda {

enum class Half { f16, bf16 };

// Computes c += a * b as in mma.cuh, on f16 or bf16.
template <Half Type>
__device__ inline void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (Type == Half::bf16) mma_bf16(c, a, b0, b1);
    else mma_f16(c, a, b0, b1);
}

template <Half Type>
__device__ inline uint32_t pack_half(float low, float high) {
    return Type == Half::bf16 ? pack_bf16(low, high) : pack_f16(low, high);
}
__device__ inline uint32_t f16_to_bf16(uint32_t pair) { return pack_bf16(f16_low(pair), f16_high(pair)); }

// Converts the four e4m3 codes of a word to two pairs; the first code is the low half of `low`. NaN stays.
template <Half Type>
__device__ inline void e4m3_pairs(uint32_t codes, uint32_t& low, uint32_t& high) {
    e4m3_to_f16(codes, low, high);
    if constexpr (Type == Half::bf16) low = f16_to_bf16(low), high = f16_to_bf16(high);
}

// Returns max(largest, |pair|) elementwise, for largest >= 0; NaN is ignored.
__device__ inline uint32_t max_magnitude_bf16(uint32_t largest, uint32_t pair) {
    uint32_t out;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(largest), "r"(pair & 0x7fff7fffu));
    return out;
}

__device__ inline uint32_t times_f16(uint32_t a, uint32_t b) {
    uint32_t out;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}
__device__ inline uint32_t times_bf16(uint32_t a, uint32_t b) {
    const __nv_bfloat162 product =
        __hmul2(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
    return *reinterpret_cast<const uint32_t*>(&product);
}
__device__ inline uint32_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

// Moves bit 3 of each of four nibbles to bit 7 of four bytes.
__device__ inline uint32_t signs_of(uint32_t nibbles) {
    const uint32_t pairs = (nibbles & 0x00ffu) | (nibbles & 0xff00u) << 8;
    return ((pairs & 0x00080008u) << 4) | ((pairs & 0x00800080u) << 8);
}

// Returns an E8M0 scale as a pair of equal bf16, exactly.
__device__ inline uint32_t e8m0_to_bf16_pair(uint32_t code) {
    const uint32_t bits = code == 255 ? 0x7fc0u : code == 0 ? 0x0040u : code << 7;
    return bits | bits << 16;
}

// Returns the four e2m1 codes in the low 16 bits times a pair of equal scales, as two pairs of bf16; exact
// unless out of range. Both bytes of a magnitude (0, 1/2, 1, 3/2, 2, 3, 4, 6) are looked up by its code.
__device__ inline void e2m1_to_bf16(uint32_t codes, uint32_t scales, uint32_t& low, uint32_t& high) {
    const uint32_t magnitudes = codes & 0x7777u;
    const uint32_t upper = __byte_perm(0x3f3f3f00u, 0x40404040u, magnitudes) | signs_of(codes);
    const uint32_t lower = __byte_perm(0xc0800000u, 0xc0804000u, magnitudes);
    low = times_bf16(__byte_perm(lower, upper, 0x5140), scales);
    high = times_bf16(__byte_perm(lower, upper, 0x7362), scales);
}

}  // namespace smla::cuda
