// Rows that are normed and rotated by position, in double, with the error bounds of a kernel in f32.
#pragma once

#include "kit/problem.h"

#include <span>

namespace smla::kit {

struct NormRule {
    bool layer;
    double eps;
    std::span<const double> weight, bias;  // empty means ones, and zeros
};

struct RotationRule {
    std::span<const double> frequencies;
    int64_t first;
    bool half;
};

// Draws positions [T] and frequencies for `pairs` channel pairs.
void draw_rotation(Problem& problem, int64_t tokens, int64_t pairs, Tensor& positions, Tensor& frequencies);

struct BoundedRow {
    explicit BoundedRow(std::span<const double> exact)
        : want(exact.begin(), exact.end()), bound(exact.size(), 0.) {}

    // Norms the first `width` values, which must be exact before the call.
    void norm(const Problem& problem, size_t width, const NormRule& rule);
    void rotate(const RotationRule& rule, double position);

    std::vector<double> want, bound;
};

// Returns the largest error of storing a value.
double stored(smla_dtype dtype, double value);

}  // namespace smla::kit
