#include "model/rope_tables.h"

#include <algorithm>
#include <cmath>

namespace smla {

namespace {
constexpr double kPi = 3.14159265358979323846;
}

YarnRamp yarn_ramp(int64_t dim, double theta, const Yarn& yarn) {
    // returns the (real-valued) pair that turns `turns` times within the original context
    const auto pair_of = [&](double turns) {
        return double(dim) * std::log(yarn.original_positions / (2 * kPi * turns)) / (2 * std::log(theta));
    };
    double low = pair_of(yarn.beta_fast), high = pair_of(yarn.beta_slow);
    if (yarn.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, double(dim - 1));  // dim - 1, as in every published implementation
    if (low == high) high += 0.001;
    return {low, high};
}

std::vector<double> rope_frequencies(int64_t dim, const RopeParameters& rope) {
    std::vector<double> out(size_t(dim / 2));
    for (size_t i = 0; i < out.size(); ++i) out[i] = std::pow(rope.theta, -2.0 * double(i) / double(dim));
    if (!rope.yarn) return out;
    const YarnRamp ramp = yarn_ramp(dim, rope.theta, *rope.yarn);
    for (size_t i = 0; i < out.size(); ++i) {
        const double slowed = std::clamp((double(i) - ramp.low) / (ramp.high - ramp.low), 0.0, 1.0);
        out[i] = out[i] * (1 - slowed) + out[i] / rope.yarn->factor * slowed;
    }
    return out;
}

double attention_scale(int64_t head_dim, const RopeParameters& rope) {
    const double scale = 1 / std::sqrt(double(head_dim));
    if (!rope.yarn || rope.yarn->factor <= 1) return scale;
    const double magnitude = 0.1 * rope.yarn->mscale * std::log(rope.yarn->factor) + 1;
    return scale * magnitude * magnitude;
}

}  // namespace smla
