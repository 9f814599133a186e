// Bit-exact conversions of bf16, f16, e4m3 (fn), e8m0 and e2m1. Roundings are to nearest, ties to even,
// unless a name says otherwise.
#pragma once

#include "core/host_device.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace smla {

SMLA_HOST_DEVICE inline float bf16_to_f32(uint16_t bits) {
    return std::bit_cast<float>(uint32_t(bits) << 16);
}

SMLA_HOST_DEVICE inline uint16_t f32_to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);  // NaN stays NaN
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

SMLA_HOST_DEVICE inline float round_to_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }

SMLA_HOST_DEVICE inline float f16_to_f32(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u,
                   mantissa = bits & 0x3ffu;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float magnitude = float(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

SMLA_HOST_DEVICE inline uint16_t f32_to_f16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), sign = (bits >> 16) & 0x8000u,
                   magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {  // values below 2^-14 are multiples of 2^-24, rounded by the float adder
        const float steps = std::bit_cast<float>(magnitude) + 0.5f;
        return uint16_t(sign | (std::bit_cast<uint32_t>(steps) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
}

SMLA_HOST_DEVICE inline float e4m3_to_f32(uint8_t code) {
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
    const float magnitude =
        exponent == 0 ? float(mantissa) * 0x1p-9f
                      : std::bit_cast<float>(uint32_t(exponent + 120) << 23 | uint32_t(mantissa) << 20);
    return code & 0x80 ? -magnitude : magnitude;
}

// Saturates to +-448; NaN stays NaN. Computes all cases and selects one by mask, so that loops vectorize;
// this is 3 times as fast as branches on values of mixed magnitudes.
SMLA_HOST_DEVICE inline uint8_t f32_to_e4m3(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
    // values below 2^-6 are multiples of 2^-9, rounded by the float adder
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
    const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - 0x3c000000u) >> 20;
    const uint32_t large = 0x7eu + uint32_t(magnitude > 0x7f800000u);  // 448 and above, or NaN
    const uint32_t is_small = 0u - uint32_t(magnitude < 0x3c800000u);
    const uint32_t is_large = 0u - uint32_t(magnitude >= 0x43e00000u);
    const uint32_t code = (small & is_small) | (large & is_large) | (normal & ~(is_small | is_large));
    return uint8_t(((bits >> 24) & 0x80u) | code);
}

SMLA_HOST_DEVICE inline float e8m0_to_f32(uint8_t code) {
    if (code == 255) return std::numeric_limits<float>::quiet_NaN();
    return code == 0 ? 0x1p-127f : std::bit_cast<float>(uint32_t(code) << 23);
}

// Returns the E8M0 code of 2^ceil(log2(value)) for a finite value > 0. Uses the value's bits, because log2 is
// not exact at powers of two.
SMLA_HOST_DEVICE inline uint8_t ceil_e8m0(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if (bits <= 0x00400000u) return 0;  // at most 2^-127
    const uint32_t code = (bits + 0x7fffffu) >> 23;
    return uint8_t(code > 254 ? 254 : code);
}

SMLA_HOST_DEVICE inline float e2m1_to_f32(uint8_t code) {
    // no table, because a GPU would place it in local memory
    const uint32_t steps = code & 7u;  // 0, 0.5, then 1, 1.5, 2, 3, 4, 6: a float's exponent and first bit
    const float magnitude = steps < 2 ? 0.5f * float(steps) : std::bit_cast<float>((steps + 252) << 22);
    return code & 8 ? -magnitude : magnitude;
}

// Converts the e2m1 code in each half of a word (its lowest four bits or, if `next`, the four above them) to
// a bf16 of 2^-126 times its value. The magnitude is at bit 6 and the sign at bit 15. Other bits are ignored.
SMLA_HOST_DEVICE inline uint32_t e2m1_pair_to_tiny_bf16(uint32_t codes, bool next) {
    const uint32_t mask = next ? 0x00f000f0u : 0x000f000fu;
    const uint32_t places = next ? 0x0104u : 0x1040u;  // copies of the code for the magnitude and the sign
    return (codes & mask) * places & 0x81c081c0u;
}

// Values beyond +-6, and NaN, saturate. Ties go to the even code: 0.25 -> 0, 0.75 -> 1, 1.25 -> 1, 1.75 -> 2,
// 2.5 -> 2, 3.5 -> 4, 5 -> 4.
SMLA_HOST_DEVICE inline uint8_t f32_to_e2m1(float value) {
    const float magnitude = std::fabs(value);
    const uint8_t sign = std::signbit(value) ? 8 : 0;
    uint8_t code = 7;
    if (magnitude <= 0.25f) code = 0;
    else if (magnitude < 0.75f) code = 1;
    else if (magnitude <= 1.25f) code = 2;
    else if (magnitude < 1.75f) code = 3;
    else if (magnitude <= 2.5f) code = 4;
    else if (magnitude < 3.5f) code = 5;
    else if (magnitude <= 5.f) code = 6;
    return uint8_t(sign | code);
}

// Like f32_to_e2m1, but ties go to the smaller magnitude, zero has no sign, and NaN becomes 0.
SMLA_HOST_DEVICE inline uint8_t f32_to_e2m1_ties_to_zero(float value) {
    const float magnitude = std::fabs(value);
    const int code = (magnitude > 0.25f) + (magnitude > 0.75f) + (magnitude > 1.25f) + (magnitude > 1.75f) +
                     (magnitude > 2.5f) + (magnitude > 3.5f) + (magnitude > 5.f);
    return uint8_t(code && std::signbit(value) ? code | 8 : code);
}

}  // namespace smla
