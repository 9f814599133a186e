#include "kit/problems/row.h"

#include <cmath>

namespace smla::kit {

namespace {

double centre_error(double c, double mean, double mean_error) {
    return mean == 0 ? 0 : mean_error + kF32 * (std::fabs(c) + std::fabs(mean));
}

}  // namespace

double stored(smla_dtype dtype, double value) {
    return rounding(dtype) * std::fabs(value) + smallest_step(dtype);
}

void draw_rotation(Problem& problem, int64_t tokens, int64_t pairs, Tensor& positions, Tensor& frequencies) {
    Random& random = problem.random;
    positions = problem.memory.tensor(random.pick<smla_dtype>({SMLA_I32, SMLA_I64}), {tokens}, Inner::any);
    const int64_t most = positions.dtype == SMLA_I64 ? int64_t(1) << 40 : INT32_MAX;
    for (int64_t t = 0; t < tokens; ++t)
        set_int(positions, t, 0, random.log_between(1, random.chance(0.2) ? most : 1 << 20) - 1);
    frequencies = problem.memory.tensor(SMLA_F64, {pairs});
    for (int64_t i = 0; i < pairs; ++i)
        set_value(frequencies, i, 0, 0, 0, std::pow(10000., -double(i) / double(pairs)));
}

// Each centered value c = x - mean has the error of the mean's sum and of one rounding. The variance has
// twice these errors and the error of its own sum; the factor 1 / sqrt has half the relative error of its
// argument.
void BoundedRow::norm(const Problem& problem, size_t width, const NormRule& rule) {
    double mean = 0, size = 0, square = 0, spoilt = 0;
    for (size_t d = 0; d < width; ++d) size += std::fabs(want[d]) / double(width);
    if (rule.layer)
        for (size_t d = 0; d < width; ++d) mean += want[d] / double(width);
    const double mean_error = mean == 0 ? 0 : problem.sum_error(int64_t(width)) * size;
    for (size_t d = 0; d < width; ++d) {
        const double c = want[d] - mean, error = centre_error(c, mean, mean_error);
        square += c * c / double(width);
        spoilt += (2 * std::fabs(c) * error + error * error) / double(width);
    }
    const double under = square + rule.eps, factor = 1 / std::sqrt(under);
    const double relative = spoilt / under + problem.sum_error(int64_t(width)) * square / under + 4 * kF32;
    for (size_t d = 0; d < width; ++d) {
        const double c = want[d] - mean;
        const double w = rule.weight.empty() ? 1 : rule.weight[d];
        const double b = rule.bias.empty() ? 0 : rule.bias[d];
        const double y = c * factor * w;
        want[d] = y + b;
        bound[d] = centre_error(c, mean, mean_error) * factor * std::fabs(w) +
                   std::fabs(y) * (relative + 4 * kF32) + kF32 * std::fabs(y + b);
    }
}

// A rotation is the sum of two products of factors that are rounded to f32.
void BoundedRow::rotate(const RotationRule& rule, double position) {
    const size_t pairs = rule.frequencies.size();
    for (size_t i = 0; i < pairs; ++i) {
        const size_t at = size_t(rule.first) + (rule.half ? i : 2 * i), to = rule.half ? at + pairs : at + 1;
        const double a = want[at], b = want[to], angle = position * rule.frequencies[i];
        const double c = std::cos(angle), s = std::sin(angle);
        const double error_a = bound[at], error_b = bound[to],
                     sums = 4 * kF32 * (std::fabs(a) + std::fabs(b) + error_a + error_b);
        want[at] = a * c - b * s;
        want[to] = b * c + a * s;
        bound[at] = std::fabs(c) * error_a + std::fabs(s) * error_b + sums;
        bound[to] = std::fabs(c) * error_b + std::fabs(s) * error_a + sums;
    }
}

}  // namespace smla::kit
