// What a logit is, in double and with independent code.
#pragma once

#include "index/cases.h"

#include <cmath>

namespace smla::test {

struct Want {
    double logit, bound;  // bound: of |f32 - logit|
};

// One logit in double, with independent code, and how far f32 arithmetic may be from it: products of width D
// summed with u = 2^-24 are off by at most (D + 1) u sum |q||k| in any order, fused or not; relu does not
// enlarge that; H weighted terms and the scale add H + 2 roundings. bf16 products flush what is below 2^-126
// to zero.
inline Want logit_of(const ScoreCase& test, int64_t t, int64_t row) {
    const int64_t heads = test.shape.heads, width = test.shape.width;
    std::vector<double> key(static_cast<size_t>(width));
    test.keys().decode(row, key.data());
    double logit = 0, magnitude = 0;
    for (int64_t h = 0; h < heads; ++h) {
        double dot = 0, absolute = 0;
        for (int64_t d = 0; d < width; ++d) {
            const double product = test.q[size_t(t)][size_t(h * width + d)] * key[size_t(d)];
            dot += product;
            absolute += std::fabs(product);
        }
        const double w = test.w[size_t(t * heads + h)];
        logit += w * (dot > 0 ? dot : 0);
        magnitude += std::fabs(w) * absolute;
    }
    return {logit, double(width + heads + 3) * 0x1p-24 * magnitude + double(width * heads) * 0x1p-126};
}

}  // namespace smla::test
