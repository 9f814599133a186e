// Normalization of one row in float or double, for norm, write_kv, write_index and compress.
#pragma once

#include "core/tensor.h"

#include <cmath>
#include <span>
#include <vector>

namespace smla {

// Returns the values of a weight or bias [D]; none if it is absent.
template <class Real>
std::vector<Real> values_of(const Tensor& vector) {
    std::vector<Real> out(size_t(present(vector) ? vector.shape[0] : 0));
    if (!out.empty()) load_row(vector, address(vector, 0), vector.shape[0], out.data());
    return out;
}

// Normalizes a row. `weight` and `bias` are as long as the row, or empty for ones and zeros. `centre` means
// SMLA_NORM_LAYER.
template <class Real>
void norm_row(std::span<Real> row, bool centre, double eps, std::span<const Real> weight,
              std::span<const Real> bias) {
    Real mean = 0, square = 0;
    if (centre) {
        for (const Real v : row) mean += v;
        mean /= Real(row.size());
    }
    for (const Real v : row) square += (v - mean) * (v - mean);
    const Real factor = Real(1) / std::sqrt(square / Real(row.size()) + Real(eps));
    for (size_t d = 0; d < row.size(); ++d) {
        row[d] = (row[d] - mean) * factor;
        if (!weight.empty()) row[d] *= weight[d];
        if (!bias.empty()) row[d] += bias[d];
    }
}

}  // namespace smla
