// The rotation of indexer queries and keys: row = row * H_n / sqrt(n), H_n in Sylvester (natural) order, n a
// power of two. H is symmetric and H * H = n I, so rotating twice gives the row back, and q . k is kept when
// both are rotated.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace smla {

constexpr bool is_power_of_two(int64_t n) { return n > 0 && std::has_single_bit(uint64_t(n)); }

template <class Real>
void hadamard(Real* row, int64_t n) {
    for (int64_t half = 1; half < n; half *= 2)
        for (int64_t block = 0; block < n; block += 2 * half)
            for (int64_t i = block; i < block + half; ++i) {
                const Real a = row[i], b = row[i + half];
                row[i] = a + b;
                row[i + half] = a - b;
            }
    const Real factor = Real(1) / std::sqrt(Real(n));
    for (int64_t i = 0; i < n; ++i) row[i] *= factor;
}

}  // namespace smla
