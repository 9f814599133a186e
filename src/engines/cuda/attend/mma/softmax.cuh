// Online softmax of one warp: 16 heads, `Groups` groups of 8 keys per tile. A lane holds heads lane/4 and
// lane/4 + 8, and of each group keys 2*(lane%4) and +1, which is the accumulator layout of mma.sync.
#pragma once

#include "engines/cuda/common/ptx/math.cuh"

#include <cmath>

namespace smla::cuda_attend {

// A weight is exp2(logit2 - peak2). peak2 is the running maximum less Lift, updated lazily: weights are at
// most 2^(Lift + 8). A name that ends in 2 is in the log2 domain: logit2 = logit * log2(e).
template <int Groups, int Lift>
struct Softmax {
    float scale_log2[2];                        // logit2 = product * scale_log2
    float largest[2] = {-INFINITY, -INFINITY};  // product of this lane's keys so far
    float peak2[2] = {-INFINITY, -INFINITY};    // logit2 that weights are relative to
    // Sum of this lane's weights. -0.f means that no key was seen: adding any weight clears the sign.
    float sum[2] = {-0.f, -0.f};

    __device__ explicit Softmax(float scale_log2) : scale_log2{scale_log2, scale_log2} {}

    // Replaces products by weights. Returns, for all lanes alike, whether peaks moved; then accumulators must
    // be multiplied by `rescale`. A peak moves only if a weight would exceed 2^(Lift + 8) (sums are f32, and
    // rounding to 16 bits is relative); only then do the four lanes of a head exchange their maxima.
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
                // no FMA: the largest logit must cancel the peak exactly
                weight = cuda::exp2_fast(__fmul_rn(weight, scale_log2[r]) - base);
                added += weight;
            }
            sum[r] += added;
        }
        return moved;
    }
    // Forces the sums to be computed here; else the compiler may keep all weights in registers until later.
    __device__ void form_sums() { asm volatile("" : "+f"(sum[0]), "+f"(sum[1])); }
    __device__ bool any() const { return __float_as_uint(sum[0]) != 0x80000000u; }
    __device__ float row_sum(int r) const {
        float out = sum[r];
        out += __shfl_xor_sync(~0u, out, 1);
        return out + __shfl_xor_sync(~0u, out, 2);
    }
    __device__ float max2(int r) const {  // largest logit2 of a head
        const float out = cuda::max_nan(largest[r], __shfl_xor_sync(~0u, largest[r], 1));
        return cuda::max_nan(out, __shfl_xor_sync(~0u, out, 2)) * scale_log2[r];
    }

private:
    // Largest logit2 that leaves the peak alone. Rounded down, so that weights fit f16 at any magnitude.
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
