#include "expected.h"

#include "core/status.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace smla::cli {

Deviation deviation(const Tensor& y, const Tensor& expected) {
    double worst = 0, square = 0, error = 0;
    std::vector<double> a(size_t(y.shape[2])), b(a.size());
    for (int64_t i = 0; i < y.shape[0]; ++i)
        for (int64_t t = 0; t < y.shape[1]; ++t) {
            load_row(y, address(y, i, t), y.shape[2], a.data());
            load_row(expected, address(expected, i, t), y.shape[2], b.data());
            for (size_t d = 0; d < a.size(); ++d) {
                const double difference = std::fabs(a[d] - b[d]);
                worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
                square += b[d] * b[d];
                error += difference * difference;
            }
        }
    const double rms = std::sqrt(square / double(element_count(y)));
    return {worst / (rms > 0 ? rms : 1), std::sqrt(error) / (square > 0 ? std::sqrt(square) : 1)};
}

int64_t count_not_finite(const Tensor& values) {
    int64_t count = 0;
    std::vector<double> row(size_t(values.shape[2]));
    for (int64_t i = 0; i < values.shape[0]; ++i)
        for (int64_t t = 0; t < values.shape[1]; ++t) {
            load_row(values, address(values, i, t), values.shape[2], row.data());
            count +=
                std::count_if(row.begin(), row.end(), [](double value) { return !std::isfinite(value); });
        }
    return count;
}

}  // namespace smla::cli
