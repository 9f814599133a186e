// Arithmetic instructions that C++ has no operator for.
#pragma once

#include <cstdint>

namespace smla::cuda {

// Returns 2^x to 2 ulp; results below 2^-126 are 0.
__device__ inline float exp2_fast(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}
// Returns the maximum, or NaN if either is NaN.
__device__ inline float max_nan(float a, float b) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}

// Converts the four e4m3 codes of a word to two pairs of f16, exactly; NaN stays NaN.
__device__ inline void e4m3_to_f16(uint32_t codes, uint32_t& low, uint32_t& high) {
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 a, b;\n"
        "mov.b32 {a, b}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
#else
    // The bits of a code, moved to the exponent and mantissa of an f16, are the value times 2^-8. Only NaN
    // codes become 480.
    const auto place = [](uint32_t pair) {
        uint32_t out = (pair & 0x7f007f00u) >> 1, nan;
        asm("mul.f16x2 %0, %0, %1;" : "+r"(out) : "r"(0x5c005c00u));  // 256, 256
        asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(nan) : "r"(out), "r"(0x5f805f80u));
        return out | (nan & 0x7fff7fffu) | (pair & 0x80008000u);
    };
    low = place(__byte_perm(codes, 0, 0x1404));
    high = place(__byte_perm(codes, 0, 0x3424));
#endif
}

__device__ inline float f16_low(uint32_t pair) {
    float out;
    asm("{.reg .b16 a, b;\n mov.b32 {a, b}, %1;\n cvt.f32.f16 %0, a;}" : "=f"(out) : "r"(pair));
    return out;
}
__device__ inline float f16_high(uint32_t pair) {
    float out;
    asm("{.reg .b16 a, b;\n mov.b32 {a, b}, %1;\n cvt.f32.f16 %0, b;}" : "=f"(out) : "r"(pair));
    return out;
}

}  // namespace smla::cuda
