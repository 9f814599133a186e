// f32 as a sum of bf16: products of f32 activations with bf16 weights then run on tensor cores without loss.
#pragma once

#include "core/numbers.h"

namespace smla {

// Takes the leading 8 bits of `rest` as bf16 and leaves what remains; both steps are exact. Three parts hold
// all 24 bits of an f32, two the 11 of an f16, except bits below 2^-133, where bf16 ends. Cut, not rounded:
// rounding could overflow. Infinities and NaN go into the first part.
SMLA_HOST_DEVICE inline uint16_t take_bf16(float& rest) {
    const uint32_t bits = std::bit_cast<uint32_t>(rest);
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        const uint16_t all = f32_to_bf16(rest);
        rest = 0;
        return all;
    }
    const auto leading = uint16_t(bits >> 16);
    rest -= bf16_to_f32(leading);
    return leading;
}

}  // namespace smla
