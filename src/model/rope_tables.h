// Rotation frequencies and the matching softmax scale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace smla {

// YaRN (Peng and others, 2023): divides the frequency of channels that turn less than beta_slow times within
// the original context by `factor`, keeps channels above beta_fast, and interpolates in between.
struct Yarn {
    double factor = 1, original_positions = 1;
    double beta_fast = 32, beta_slow = 1;
    double mscale = 0;     // DSA: the softmax scale is multiplied by (0.1 mscale ln(factor) + 1)^2
    bool truncate = true;  // whether ends of the ramp are rounded outwards to channels
    std::string place;     // path in the config for errors: "rope_scaling."
};

struct RopeParameters {
    double theta = 10000;
    std::optional<Yarn> yarn;
};

struct YarnRamp {
    double low, high;  // pairs below low keep their frequency; pairs from high on are divided by factor
};
YarnRamp yarn_ramp(int64_t dim, double theta, const Yarn& yarn);

// Returns radians per position of the dim / 2 pairs.
std::vector<double> rope_frequencies(int64_t dim, const RopeParameters& rope);

// Returns head_dim^-0.5, times the square of YaRN's magnitude if the model has one.
double attention_scale(int64_t head_dim, const RopeParameters& rope);

}  // namespace smla
