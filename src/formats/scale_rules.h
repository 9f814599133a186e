// How writers choose a tile's scale from its largest magnitude (NaN left out): powers of two all, so that
// readers of any kind agree on them. In the arithmetic of the values, float or double. Sources:
// docs/formats.md.
#pragma once

#include "core/numbers.h"

#include <cmath>

namespace smla::scale_rule {

constexpr double kE4m3Max = 448, kE2m1Max = 6;
constexpr double kFloor = 1e-4;              // of amax or of the scale, as each rule says
constexpr double kE2m1Floor = 6 * 0x1p-126;  // of amax: a scale of 2^-126, the smallest normal float

// not std::max: its references need an address, which constants have on no device
template <class Real>
SMLA_HOST_DEVICE inline Real at_least(Real value, Real floor) {
    return value < floor ? floor : value;
}

// The E8M0 code of 2^ceil(log2(value)) for value > 0, within 2^-127..2^127; infinity gives 2^127. log2 itself
// is not exact at powers of two.
template <class Real>
SMLA_HOST_DEVICE inline uint8_t ceil_code(Real value) {
    if constexpr (sizeof(Real) == sizeof(float)) {
        return ceil_e8m0(value);
    } else {
        if (!std::isfinite(value)) return 254;
        int exponent;
        // value = mantissa * 2^exponent, mantissa in [0.5, 1)
        const Real mantissa = std::frexp(value, &exponent);
        const int code = (mantissa == Real(0.5) ? exponent - 1 : exponent) + 127;
        return uint8_t(code < 0 ? 0 : code > 254 ? 254 : code);
    }
}

// The floor after the division: fp8_656 and fp8_528.
SMLA_HOST_DEVICE inline float latent(float amax) {
    return ceil_power_of_two(at_least(amax / float(kE4m3Max), float(kFloor)));
}
// The floor before it: fp8_584, index_fp8_132, e4m3 queries of an indexer.
template <class Real>
SMLA_HOST_DEVICE inline uint8_t e8m0(Real amax, Real floor = Real(kFloor)) {
    return ceil_code(at_least(amax, floor) / Real(kE4m3Max));
}
// Blocks of e2m1: index_mxfp4_68 and queries.
template <class Real>
SMLA_HOST_DEVICE inline uint8_t mxfp4(Real amax) {
    return ceil_code(at_least(amax, Real(kE2m1Floor)) / Real(kE2m1Max));
}

}  // namespace smla::scale_rule
