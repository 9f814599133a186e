// The order of select as integers: better scores have larger keys, -0 and +0 share one, NaN is below -inf.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace smla {

constexpr int32_t kNanKey = std::numeric_limits<int32_t>::min();

inline int32_t rank_key(float value) {
    if (std::isnan(value)) return kNanKey;
    const int32_t bits = std::bit_cast<int32_t>(value + 0.f);  // -0 + 0 is +0
    return bits ^ ((bits >> 31) & 0x7fffffff);                 // negative floats have descending bits
}

// Returns the least float whose key is above `key`; above +inf it returns NaN, which nothing passes. Keys
// between NaN and -inf belong to no score.
inline float floor_above(int32_t key) {
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    if (key < rank_key(lowest)) return lowest;
    const int32_t next = key + 1;
    return std::bit_cast<float>(next ^ ((next >> 31) & 0x7fffffff));
}

}  // namespace smla
