// Pairs of small floats to pairs of 16-bit ones, exactly; NaN stays NaN. The low half of a result holds the
// first value.
#pragma once

#include "engines/cuda_common/ptx/mma.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace smla::cuda {

__device__ inline uint32_t bits_of(__half2 pair) { return *reinterpret_cast<uint32_t*>(&pair); }
__device__ inline uint32_t bits_of(__nv_bfloat162 pair) { return *reinterpret_cast<uint32_t*>(&pair); }
__device__ inline __half2 f16_pair(uint32_t bits) { return *reinterpret_cast<__half2*>(&bits); }
__device__ inline __nv_bfloat162 bf16_pair(uint32_t bits) {
    return *reinterpret_cast<__nv_bfloat162*>(&bits);
}

// Two e4m3 codes in the low 16 bits.
__device__ inline uint32_t e4m3_to_f16(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
    uint32_t out;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(uint16_t(codes)));
    return out;
#else
    // The bits of a code are those of an f16 2^8 times smaller; 0x7f is the one NaN.
    const uint32_t apart = (codes & 0xffu) | (codes & 0xff00u) << 8, magnitude = apart & 0x007f007fu;
    const uint32_t placed = magnitude << 7 | (apart & 0x00800080u) << 8;
    const uint32_t nan = __vcmpeq2(magnitude, 0x007f007fu) & 0x7e007e00u;
    return bits_of(__hmul2(f16_pair(placed), f16_pair(0x5c005c00u))) | nan;
#endif
}

__device__ inline uint32_t f16_to_bf16(uint32_t pair) {
    return bits_of(__float22bfloat162_rn(__half22float2(f16_pair(pair))));
}

template <Half Type>
__device__ inline uint32_t e4m3_pair(uint32_t codes) {
    const uint32_t f16 = e4m3_to_f16(codes);
    return Type == Half::f16 ? f16 : f16_to_bf16(f16);
}

// Two e2m1 codes in the low 8 bits, the first in the low nibble, times an e8m0 scale, as bf16: exact but for
// what leaves its range. The bits of a code are those of a bf16 2^126 times smaller.
__device__ inline uint32_t e2m1_to_bf16(uint32_t codes, uint32_t e8m0) {
    const uint32_t apart = (codes & 0xfu) | (codes & 0xf0u) << 12;
    const uint32_t placed = (apart & 0x00070007u) << 6 | (apart & 0x00080008u) << 12;
    const uint32_t scale = e8m0 == 255 ? 0x7fc0u : e8m0 == 0 ? 0x0040u : e8m0 << 7;
    const __nv_bfloat162 value = __hmul2(bf16_pair(placed), bf16_pair(0x7e807e80u));
    return bits_of(__hmul2(value, bf16_pair(scale | scale << 16)));
}

}  // namespace smla::cuda
