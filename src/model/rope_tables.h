// Rotation frequencies and the softmax scale that goes with them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace smla {

// YaRN (Peng et al. 2023): channels that turn less than beta_slow times within the original context are
// slowed down by `factor`, those above beta_fast are kept, with a ramp between.
struct Yarn {
    double factor = 1, original_positions = 1;
    double beta_fast = 32, beta_slow = 1;
    double mscale = 0;     // DSA: the softmax scale is multiplied by (0.1 mscale ln(factor) + 1)^2
    bool truncate = true;  // round the ends of the ramp outwards to whole channels
    std::string place;     // in the config, for errors: "rope_scaling."
};

struct RopeParameters {
    double theta = 10000;
    std::optional<Yarn> yarn;
};

struct YarnRamp {
    double low, high;  // pairs below low keep their frequency, from high on they are divided by the factor
};
YarnRamp yarn_ramp(int64_t dim, double theta, const Yarn& yarn);

// Radians per position of the dim / 2 pairs.
std::vector<double> rope_frequencies(int64_t dim, const RopeParameters& rope);

// head_dim^-0.5, times the square of YaRN's magnitude where the model has one.
double attention_scale(int64_t head_dim, const RopeParameters& rope);

}  // namespace smla
