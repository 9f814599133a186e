// A small, fast generator (splitmix64: Steele, Lea, Flood 2014) with the same numbers on every machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace smla::kit {

class Random {
public:
    // `longest`: upper bound of log_between(), regardless of its arguments.
    explicit Random(uint64_t seed, int64_t longest = INT64_MAX) : state_(seed), longest_(longest) {}
    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t limit) { return uint64_t((unsigned __int128)(next()) * limit >> 64); }
    int64_t between(int64_t low, int64_t high) {  // both ends are included
        return low + int64_t(below(uint64_t(high - low) + 1));
    }
    int64_t log_between(int64_t low, int64_t high) {  // low >= 1; small numbers are as likely as large ones
        high = std::max(low, std::min(high, longest_));
        const double value = std::exp(uniform(std::log(double(low)), std::log(double(high) + 1)));
        return std::clamp(int64_t(value), low, high);
    }
    bool chance(double share) { return double(next() >> 11) * 0x1p-53 < share; }
    double uniform(double low, double high) { return low + (high - low) * double(next() >> 11) * 0x1p-53; }
    double normal() {  // Box-Muller transform
        return std::sqrt(-2 * std::log(1 - uniform(0, 1))) * std::cos(6.283185307179586 * uniform(0, 1));
    }
    // Returns a sum of four uniform 16-bit numbers, scaled to variance 1: a fast, nearly normal value.
    float rough_normal() {
        const uint64_t bits = next();
        const int64_t sum = int64_t(bits & 0xffff) + int64_t(bits >> 16 & 0xffff) +
                            int64_t(bits >> 32 & 0xffff) + int64_t(bits >> 48);
        return float(sum - 2 * 0xffff) * (1.7320508f / 65536);
    }
    template <class T>
    T pick(std::initializer_list<T> values) {
        return values.begin()[between(0, int64_t(values.size()) - 1)];
    }

private:
    uint64_t state_;
    int64_t longest_;
};

}  // namespace smla::kit
