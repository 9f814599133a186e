// Table of the values of all e4m3 codes: one load per value replaces the branches of e4m3_to_f32.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace smla {

constexpr std::array<float, 256> make_e4m3_values() {
    std::array<float, 256> values{};
    for (uint32_t code = 0; code < 128; ++code) {
        const uint32_t exponent = code >> 3, mantissa = code & 7;
        float value = std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
        if (exponent == 0) value = float(mantissa) * 0x1p-9f;
        if (code == 127) value = std::numeric_limits<float>::quiet_NaN();
        values[code] = value;
        values[code + 128] = -value;
    }
    return values;
}

inline constexpr std::array<float, 256> kE4m3Values = make_e4m3_values();

}  // namespace smla
