// f32 as a sum of bf16, so that tensor cores multiply f32 activations by bf16 weights without loss.
#pragma once

#include "core/numbers.h"

namespace smla {

// Returns the leading 8 bits of `rest` as bf16 and subtracts them; both steps are exact. Three parts have all
// 24 bits of an f32, and two all 11 of an f16, except bits below 2^-133, the smallest bf16. Bits are
// truncated, because rounding could overflow. Infinities and NaN go into the first part.
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
