// Rotation of indexer queries and keys: row = row * H_n / sqrt(n), with H_n in Sylvester (natural) order and
// n a power of two. H_n is symmetric and H_n * H_n = n I. Therefore a second rotation restores the row, and
// rotating both q and k keeps q . k.
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
