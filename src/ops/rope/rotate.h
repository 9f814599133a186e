// Rotation of one row by its position, for rope, inverse_rope and compress. Angles are exact, because
// position and frequency are multiplied in double. Published models round both to f32, an error of about 6e-8
// * position radians.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace smla {

template <class Real>
struct Rotation {
    std::vector<Real> cosine, sine;  // one per pair

    void set(const double* frequencies, int64_t pairs, int64_t position, bool inverse) {
        cosine.resize(size_t(pairs));
        sine.resize(size_t(pairs));
        for (int64_t i = 0; i < pairs; ++i) {
            const double angle = double(position) * frequencies[i];
            cosine[size_t(i)] = Real(std::cos(angle));
            sine[size_t(i)] = Real(inverse ? -std::sin(angle) : std::sin(angle));
        }
    }

    void apply(Real& a, Real& b, size_t pair) const {
        const Real x = a, y = b;
        a = x * cosine[pair] - y * sine[pair];
        b = y * cosine[pair] + x * sine[pair];
    }
    void interleaved(Real* x) const {  // pairs (2i, 2i+1)
        for (size_t i = 0; i < cosine.size(); ++i) apply(x[2 * i], x[2 * i + 1], i);
    }
    void half(Real* x) const {  // pairs (i, i + n)
        for (size_t i = 0; i < cosine.size(); ++i) apply(x[i], x[i + cosine.size()], i);
    }
};

}  // namespace smla
