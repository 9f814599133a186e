// Softmax-weighted mean of one channel, accumulated over rows in any order and joined from partial results.
// Kernels that split a window over threads use it; on the host only tests do.
#pragma once

#include "core/host_device.h"

#include <cmath>

namespace smla {

struct SoftPool {
    float peak = -INFINITY, sum = 0, value = 0;

    // Adds rows. A missing row has score -inf and kv 0, which changes nothing unless all scores are -inf.
    // NaN, +inf and a mean over nothing (0 / 0) give NaN, like the reference's exp(-inf - -inf).
    template <int n>
    SMLA_HOST_DEVICE void add(const float (&score)[n], const float (&kv)[n]) {
        float larger = peak;
        for (int i = 0; i < n; ++i) larger = score[i] > larger ? score[i] : larger;
        rescale(larger);
        for (int i = 0; i < n; ++i) {
            const float weight = exponential(score[i] - shift());
            sum += weight;
            value += weight * kv[i];
        }
    }
    // All compilers produce the same bits, because the code states which product is fused with the addition.
    SMLA_HOST_DEVICE void join(const SoftPool& other) {
        const float before = peak;
        peak = other.peak > peak ? other.peak : peak;
        const float mine = exponential(before - shift()), theirs = exponential(other.peak - shift());
        sum = fmaf(sum, mine, other.sum * theirs);
        value = fmaf(value, mine, other.value * theirs);
    }
    SMLA_HOST_DEVICE float mean() const { return value / sum; }

private:
    SMLA_HOST_DEVICE float shift() const { return peak == -INFINITY ? 0.f : peak; }  // never inf - inf
    SMLA_HOST_DEVICE void rescale(float larger) {
        const float before = peak;
        peak = larger;
        const float factor = exponential(before - shift());
        sum *= factor;
        value *= factor;
    }
    // A GPU uses the fast exponential, with |x| more ulps of error in a weight below exp(-|x|).
    SMLA_HOST_DEVICE static float exponential(float x) {
#if defined(__CUDA_ARCH__)
        return __expf(x);
#else
        return std::exp(x);
#endif
    }
};

}  // namespace smla
