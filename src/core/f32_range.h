// Numbers of a call that kernels take in f32.
#pragma once

#include <limits>

namespace smla {

// Above 0 and finite, as an f32 too.
constexpr bool is_positive_f32(double value) {
    using F32 = std::numeric_limits<float>;
    return value >= F32::denorm_min() && value <= F32::max();
}

}  // namespace smla
