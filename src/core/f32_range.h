// Numbers of a call that kernels take in f32.
#pragma once

#include <limits>
#include <numbers>

namespace smla {

// Above 0 and finite, as an f32 too.
constexpr bool is_positive_f32(double value) {
    using F32 = std::numeric_limits<float>;
    return value >= F32::denorm_min() && value <= F32::max();
}

// Whether scores times both scales and log2 e, the factor that kernels keep, stay finite.
constexpr bool softmax_fits_f32(double softmax_scale, double q_scale) {
    return softmax_scale * q_scale * std::numbers::log2e <= std::numeric_limits<float>::max();
}

}  // namespace smla
