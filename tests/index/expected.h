// What a logit is, in double and with independent code.
#pragma once

#include "index/cases.h"

#include <algorithm>
#include <cmath>

namespace smla::test {

struct Want {
    double logit, bound;  // bound: of |f32 - logit|
    // What precision rounded may add on Hopper. Its tensor cores align 32 products of e4m3 and the sum so far
    // to the largest exponent and cut them to 14 bits, of which two may lead: each of the 33 loses less than
    // 2^-12 of the largest. None is larger than all positive products, or all negative ones.
    double rounded;
};

// One logit in double, with independent code, and how far f32 arithmetic may be from it: products of width D
// summed with u = 2^-24 are off by at most (D + 1) u sum |q||k| in any order, fused or not; relu does not
// enlarge that; H weighted terms and the scale add H + 2 roundings. bf16 products flush what is below 2^-126
// to zero.
inline Want logit_of(const ScoreCase& test, int64_t t, int64_t row) {
    const int64_t heads = test.shape.heads, width = test.shape.width;
    std::vector<double> key(static_cast<size_t>(width));
    test.keys().decode(row, key.data());
    double logit = 0, magnitude = 0, largest = 0;
    for (int64_t h = 0; h < heads; ++h) {
        double dot = 0, absolute = 0, above = 0;
        for (int64_t d = 0; d < width; ++d) {
            const double product = test.q[size_t(t)][size_t(h * width + d)] * key[size_t(d)];
            dot += product;
            absolute += std::fabs(product);
            above += std::max(product, 0.);
        }
        const double w = test.w[size_t(t * heads + h)];
        logit += w * (dot > 0 ? dot : 0);
        magnitude += std::fabs(w) * absolute;
        largest += std::fabs(w) * std::max(above, absolute - above);
    }
    return {logit, double(width + heads + 3) * 0x1p-24 * magnitude + double(width * heads) * 0x1p-126,
            double(width / 32 * 33) * 0x1p-12 * largest};
}

}  // namespace smla::test
