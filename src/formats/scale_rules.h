// Scales of a tile, computed from its largest magnitude (ignoring NaN) in float or double, as the values.
// Except for nvfp4, scales are powers of two, so that all readers agree on them. docs/formats.md lists
// sources.
#pragma once

#include "core/numbers.h"

#include <cmath>

namespace smla::scale_rule {

constexpr double kE4m3Max = 448, kE2m1Max = 6;
constexpr double kFloor = 1e-4;              // floor of amax or of the scale, depending on the rule
constexpr double kE2m1Floor = 6 * 0x1p-126;  // floor of amax: scale of 2^-126, the smallest normal float

// std::max cannot be used: it takes references, and a host constant has no address in device code.
template <class Real>
SMLA_HOST_DEVICE inline Real at_least(Real value, Real floor) {
    return value < floor ? floor : value;
}

// Returns the E8M0 code of 2^ceil(log2(value)) for value > 0, within 2^-127..2^127; infinity gives 2^127.
// log2 itself is not exact at powers of two.
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

// Returns the scale with the lower bound after the division: fp8_656, fp8_528, sglang's fp8_528_g32.
SMLA_HOST_DEVICE inline uint8_t e8m0_of_floored_scale(float amax) {
    return ceil_e8m0(at_least(amax / float(kE4m3Max), float(kFloor)));
}
SMLA_HOST_DEVICE inline float latent(float amax) { return e8m0_to_f32(e8m0_of_floored_scale(amax)); }
// Returns the scale with the lower bound before the division: fp8_584, fp8_528_g32, index_fp8_132, queries.
template <class Real>
SMLA_HOST_DEVICE inline uint8_t e8m0(Real amax, Real floor = Real(kFloor)) {
    return ceil_code(at_least(amax, floor) / Real(kE4m3Max));
}
// Returns the scale of e2m1 blocks in index_mxfp4_68 and queries.
template <class Real>
SMLA_HOST_DEVICE inline uint8_t mxfp4(Real amax) {
    return ceil_code(at_least(amax, Real(kE2m1Floor)) / Real(kE2m1Max));
}
// Returns the scale of e2m1 blocks with the lower bound after the division (SMLA_WRITER_SCALE_FLOOR).
SMLA_HOST_DEVICE inline uint8_t mxfp4_of_floored_scale(float amax) {
    return ceil_e8m0(at_least(amax / float(kE2m1Max), float(kFloor)));
}

// Scale of e2m1 groups with e4m3 scales. Writers of different projects compute amax / 6 and value / scale by
// division or by multiplication with a reciprocal, and so round differently.
struct Nvfp4 {
    bool sixth_by_reciprocal, scale_by_reciprocal;
    float floor;  // lower bound of the scale; if 0, a scale may round to zero, with codes of 0
};
constexpr float kSmallestE4m3 = 0x1p-9f;
constexpr Nvfp4 kNvfp4_288{true, false, kSmallestE4m3};
constexpr Nvfp4 kNvfp4_352{true, true, kSmallestE4m3};
constexpr Nvfp4 kNvfp4_384{false, true, 0};

constexpr uint8_t kNanE4m3 = 0x7f;

SMLA_HOST_DEVICE inline uint8_t nvfp4(float amax, const Nvfp4& rule) {
    const float sixth = rule.sixth_by_reciprocal ? amax * (1.f / 6.f) : amax / 6.f;
    return f32_to_e4m3(at_least(sixth, rule.floor));
}
// Returns the code of a value. If the group's scale is NaN, the code is 0, because e2m1 has no NaN.
SMLA_HOST_DEVICE inline uint8_t nvfp4_code(float value, float scale, const Nvfp4& rule) {
    if (std::isnan(scale)) return 0;
    if (scale == 0) return std::signbit(value) ? 8 : 0;
    return f32_to_e2m1(rule.scale_by_reciprocal ? value * (1.f / scale) : value / scale);
}

}  // namespace smla::scale_rule
