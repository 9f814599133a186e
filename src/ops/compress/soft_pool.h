// The softmax-weighted mean of one channel, accumulated over rows in any order and joined from partial
// results: for kernels that split a window over threads. On the host only tests use it.
#pragma once

#include "core/host_device.h"

#include <cmath>

namespace smla {

struct SoftPool {
    float peak = -INFINITY, sum = 0, value = 0;

    // A row that does not exist has score -inf and kv 0: it changes nothing, unless all scores are -inf.
    // NaN and +inf end as NaN, as does a mean over nothing (0 / 0), like the reference's exp(-inf - -inf).
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
    // The same bits wherever it is compiled: which product is fused with the addition is said here.
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
    // On a GPU the short one: off by |x| ulps more, of a weight that is below exp(-|x|).
    SMLA_HOST_DEVICE static float exponential(float x) {
#if defined(__CUDA_ARCH__)
        return __expf(x);
#else
        return std::exp(x);
#endif
    }
};

}  // namespace smla
