// Online softmax of one warp: 16 heads, `Groups` groups of 8 keys per tile. A lane has heads lane / 4 and
// lane / 4 + 8, and keys 2 * (lane % 4) and + 1 of each group, as in the accumulators of mma.sync.
#pragma once

#include "engines/cuda/common/ptx/math.cuh"

#include <cmath>

namespace smla::cuda_attend {

// A weight is exp2(logit2 - peak2). peak2 is the running maximum minus Lift and is updated lazily, so weights
// are at most 2^(Lift + 8). Names that end in 2 are in the log2 domain: logit2 = logit * log2(e).
template <int Groups, int Lift>
struct Softmax {
    float scale_log2[2];                        // logit2 = product * scale_log2
    float largest[2] = {-INFINITY, -INFINITY};  // largest product of this lane's keys
    float peak2[2] = {-INFINITY, -INFINITY};    // reference logit2 of the weights
    // Sum of this lane's weights. -0.f means that no key was seen, because adding any weight clears the sign.
    float sum[2] = {-0.f, -0.f};

    __device__ explicit Softmax(float scale_log2) : scale_log2{scale_log2, scale_log2} {}

    // Replaces products by weights. Returns to all lanes whether peaks moved; if so, accumulators must be
    // multiplied by `rescale`. A peak moves only if a weight would exceed 2^(Lift + 8), because sums are f32
    // and rounding to 16 bits has a relative error. Only then do the lanes of a head exchange maxima.
    __device__ bool update(float (&s)[Groups][4], float (&rescale)[2]) {
        bool passed = false;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int n = 0; n < Groups; ++n)
                largest[r] = cuda::max_nan(largest[r], cuda::max_nan(s[n][2 * r], s[n][2 * r + 1]));
            passed = passed || !(largest[r] * scale_log2[r] <= limit(r));
        }
        const bool moved = __any_sync(~0u, passed);
        if (moved) move_peaks(rescale);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float base = peak2[r] == -INFINITY ? 0.f : peak2[r];
            float added = 0;
#pragma unroll
            for (int i = 0; i < 2 * Groups; ++i) {
                float& weight = s[i / 2][2 * r + i % 2];
                // not an FMA, so that the largest logit cancels the peak exactly
                weight = cuda::exp2_fast(__fmul_rn(weight, scale_log2[r]) - base);
                added += weight;
            }
            sum[r] += added;
        }
        return moved;
    }
    // Forces the compiler to compute the sums here instead of keeping all weights in registers until later.
    __device__ void form_sums() { asm volatile("" : "+f"(sum[0]), "+f"(sum[1])); }
    __device__ bool any() const { return __float_as_uint(sum[0]) != 0x80000000u; }
    __device__ float row_sum(int r) const {
        float out = sum[r];
        out += __shfl_xor_sync(~0u, out, 1);
        return out + __shfl_xor_sync(~0u, out, 2);
    }
    __device__ float max2(int r) const {  // returns the largest logit2 of a head
        const float out = cuda::max_nan(largest[r], __shfl_xor_sync(~0u, largest[r], 1));
        return cuda::max_nan(out, __shfl_xor_sync(~0u, out, 2)) * scale_log2[r];
    }

private:
    // Returns the largest logit2 that does not move the peak, rounded down so that weights always fit f16.
    __device__ float limit(int r) const { return __fadd_rd(peak2[r], Lift + 8); }
    __device__ void move_peaks(float (&rescale)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float largest2 = max2(r);
            rescale[r] = 1;
            if (!(largest2 <= limit(r))) {
                rescale[r] = cuda::exp2_fast(peak2[r] - (largest2 - Lift));
                peak2[r] = largest2 - Lift;
            }
            sum[r] *= rescale[r];
        }
    }
};

}  // namespace smla::cuda_attend
