// How writers choose a tile's scale from its largest magnitude (NaN left out): powers of two all, so that
// readers of any kind agree on them. Sources: docs/formats.md.
#pragma once

#include "core/numbers.h"

namespace smla::scale_rule {

constexpr float kE4m3Max = 448.f, kE2m1Max = 6.f;
constexpr float kFloor = 1e-4f;              // of amax or of the scale, as each rule says
constexpr float kE2m1Floor = 6 * 0x1p-126f;  // of amax: a scale of 2^-126, the smallest normal float

// not std::max: its references need an address, which constants have on no device
SMLA_HOST_DEVICE inline float at_least(float value, float floor) { return value < floor ? floor : value; }

// The floor after the division: fp8_656 and fp8_528.
SMLA_HOST_DEVICE inline float latent(float amax) {
    return ceil_power_of_two(at_least(amax / kE4m3Max, kFloor));
}
// The floor before it: fp8_584 and index_fp8_132.
SMLA_HOST_DEVICE inline uint8_t e8m0(float amax) { return ceil_e8m0(at_least(amax, kFloor) / kE4m3Max); }
// Blocks of e2m1: index_mxfp4_68.
SMLA_HOST_DEVICE inline uint8_t mxfp4(float amax) { return ceil_e8m0(at_least(amax, kE2m1Floor) / kE2m1Max); }

}  // namespace smla::scale_rule
