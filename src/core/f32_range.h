// Checks of numbers that kernels convert to f32.
#pragma once

#include <limits>
#include <numbers>

namespace smla {

// Returns whether a value is finite and above 0, also as f32.
constexpr bool is_positive_f32(double value) {
    using F32 = std::numeric_limits<float>;
    return value >= F32::denorm_min() && value <= F32::max();
}

// Returns whether both scales times log2 e, the factor in the kernels, is finite in f32.
constexpr bool softmax_fits_f32(double softmax_scale, double q_scale) {
    return softmax_scale * q_scale * std::numbers::log2e <= std::numeric_limits<float>::max();
}

}  // namespace smla
