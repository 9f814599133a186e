// 4 lanes of f32 for 64-bit Arm.
#pragma once

#include "engines/cpu/lanes.h"

#include <arm_neon.h>

namespace smla::lanes {

namespace {

struct Neon {
    using Vec = float32x4_t;
    using Mask = uint32x4_t;
    static constexpr int lanes = 4, values_per_word = 1;

    static SMLA_INLINE Vec zero() { return vdupq_n_f32(0.f); }
    static SMLA_INLINE Vec load(const float* at) { return vld1q_f32(at); }
    static SMLA_INLINE void store(float* at, Vec v) { vst1q_f32(at, v); }
    static SMLA_INLINE Vec load_words(const uint32_t* at) { return vreinterpretq_f32_u32(vld1q_u32(at)); }
    static SMLA_INLINE Vec broadcast(float v) { return vdupq_n_f32(v); }
    static SMLA_INLINE Vec broadcast_word(const uint32_t* at) {
        return vreinterpretq_f32_u32(vld1q_dup_u32(at));
    }
    static SMLA_INLINE Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
    static SMLA_INLINE Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
    static SMLA_INLINE Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
    static SMLA_INLINE Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
    static SMLA_INLINE Vec dot(Vec sum, Vec a, Vec b) { return vfmaq_f32(sum, a, b); }
    // b if either is NaN
    static SMLA_INLINE Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
    static SMLA_INLINE Vec round(Vec v) { return vrndnq_f32(v); }
    // v * 2^n, 0 below the smallest normal number
    static SMLA_INLINE Vec scale_by_power(Vec v, Vec n) {
        const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
        const uint32x4_t small = vcltq_f32(n, vdupq_n_f32(-126.f));
        return vbslq_f32(small, zero(), vmulq_f32(v, vreinterpretq_f32_s32(power)));
    }
    static SMLA_INLINE bool all_one(Vec v) { return vminvq_u32(vceqq_f32(v, vdupq_n_f32(1.f))) != 0; }
    static SMLA_INLINE Vec relu(Vec v) { return vmaxq_f32(zero(), v); }  // NaN stays NaN
    // Returns the sums over the lanes of each vector, with the sum of vector i in lane i.
    static SMLA_INLINE Vec sum_lanes(const Vec (&v)[4]) {
        return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]));
    }
    static SMLA_INLINE Mask first_lanes(int64_t n) {
        constexpr int32_t numbers[4] = {0, 1, 2, 3};
        return vcltq_s32(vld1q_s32(numbers), vdupq_n_s32(n >= lanes ? lanes : int32_t(n)));
    }
    static SMLA_INLINE Vec select(Mask m, Vec yes, Vec no) { return vbslq_f32(m, yes, no); }

    // The code's bits in the exponent and mantissa of an f32 are the value times 2^-120, even if subnormal.
    static SMLA_INLINE Vec load_e4m3(const uint8_t* codes) {
        uint32_t four;
        __builtin_memcpy(&four, codes, sizeof four);
        const uint32x4_t code = vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
        const uint32x4_t magnitude = vandq_u32(code, vdupq_n_u32(0x7f));
        const uint32x4_t sign = vshlq_n_u32(vandq_u32(code, vdupq_n_u32(0x80)), 24);
        const Vec value = vmulq_f32(vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(magnitude, 20), sign)),
                                    vdupq_n_f32(0x1p120f));
        const uint32x4_t nan = vceqq_u32(magnitude, vdupq_n_u32(0x7f));
        return vbslq_f32(nan, vdupq_n_f32(__builtin_nanf("")), value);
    }
    // Decodes four codes with the even channel in the low nibble. Bits 0 to 2 select the magnitude; bit 3 is
    // the sign.
    static SMLA_INLINE Vec load_e2m1(const uint8_t* codes) {
        constexpr float magnitudes[8] = {0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f};
        constexpr int32_t shifts[4] = {0, -4, -8, -12};
        const uint32_t four = codes[0] | uint32_t(codes[1]) << 8;
        const uint32x4_t code = vshlq_u32(vdupq_n_u32(four), vld1q_s32(shifts));
        const float chosen[4] = {magnitudes[four & 7], magnitudes[four >> 4 & 7], magnitudes[four >> 8 & 7],
                                 magnitudes[four >> 12 & 7]};
        const uint32x4_t sign = vshlq_n_u32(vandq_u32(code, vdupq_n_u32(8)), 28);
        return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(vld1q_f32(chosen)), sign));
    }
    static SMLA_INLINE Vec load_bf16(const void* at) {
        return vreinterpretq_f32_u32(
            vshll_n_u16(vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t*>(at))), 16));
    }
    // Rounds f32 to bf16, to nearest even, in the high halves of the words. NaN stays NaN.
    static SMLA_INLINE uint32x4_t bf16_bits(Vec v) {
        const uint32x4_t bits = vreinterpretq_u32_f32(v);
        const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        const uint32x4_t sum = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
        return vandq_u32(vbslq_u32(vceqq_f32(v, v), sum, quiet), vdupq_n_u32(0xffff0000u));
    }
    static SMLA_INLINE Vec round_bf16(Vec v) { return vreinterpretq_f32_u32(bf16_bits(v)); }
    static SMLA_INLINE void store_bf16(char* at, Vec v) {
        vst1_u8(bytes(at), vreinterpret_u8_u16(vshrn_n_u32(bf16_bits(v), 16)));
    }
    static SMLA_INLINE void store_f16(char* at, Vec v) {
        vst1_u8(bytes(at), vreinterpret_u8_f16(vcvt_f16_f32(v)));
    }

private:
    static SMLA_INLINE uint8_t* bytes(char* at) { return reinterpret_cast<uint8_t*>(at); }
};

}  // namespace

}  // namespace smla::lanes
