// The running softmax of one warp: 16 heads, `Groups` groups of 8 keys at a time. A lane holds heads lane/4
// and lane/4 + 8, and of each group the columns 2*(lane%4) and +1, as a product of mma.sync leaves them.
#pragma once

#include "engines/cuda_common/ptx/math.cuh"

#include <cmath>

namespace smla::cuda_attend {

// Weights are 2^Lift times exp(logit - largest logit so far).
template <int Groups, int Lift>
struct Softmax {
    float unit[2];                              // turns a product into a logit in powers of two
    float largest[2] = {-INFINITY, -INFINITY};  // product of this lane's columns so far
    float peak2[2] = {-INFINITY, -INFINITY};    // logit that weights are relative to, in powers of two
    // Of this lane's columns; -0 until a first key is weighed: with any weight, 0 too, +0 or more.
    float sum[2] = {-0.f, -0.f};

    __device__ explicit Softmax(float unit) : unit{unit, unit} {}

    // Products become weights. shrink: what earlier sums are to be multiplied with, set only where true is
    // returned, the same for all lanes. The peak moves only when a weight could pass 2^8 (sums are in f32,
    // and rounding weights to bf16 is relative): only then do the four lanes of a head meet.
    __device__ bool weigh(float (&s)[Groups][4], float (&shrink)[2]) {
        bool passed = false;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int n = 0; n < Groups; ++n)
                largest[r] = cuda::max_nan(largest[r], cuda::max_nan(s[n][2 * r], s[n][2 * r + 1]));
            passed = passed || !(largest[r] * unit[r] <= limit(r));
        }
        const bool moved = __any_sync(~0u, passed);
        if (moved) move_peaks(shrink);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float base = peak2[r] == -INFINITY ? 0.f : peak2[r];
            float added = 0;
#pragma unroll
            for (int i = 0; i < 2 * Groups; ++i) {
                float& weight = s[i / 2][2 * r + i % 2];
                // not fused: the largest is to become the peak exactly, however large it is
                weight = cuda::exp2_fast(__fmul_rn(weight, unit[r]) - base);
                added += weight;
            }
            sum[r] += added;
        }
        return moved;
    }
    // Sums are formed now: else the compiler may keep all weights for it, in registers that others need.
    __device__ void settle() { asm volatile("" : "+f"(sum[0]), "+f"(sum[1])); }
    __device__ bool any() const { return __float_as_uint(sum[0]) != 0x80000000u; }
    __device__ float total(int r) const {
        float out = sum[r];
        out += __shfl_xor_sync(~0u, out, 1);
        return out + __shfl_xor_sync(~0u, out, 2);
    }
    __device__ float top2(int r) const {  // largest logit of a head, in powers of two
        const float out = cuda::max_nan(largest[r], __shfl_xor_sync(~0u, largest[r], 1));
        return cuda::max_nan(out, __shfl_xor_sync(~0u, out, 2)) * unit[r];
    }

private:
    // Of a logit, while the peak stays. Rounded down: however large it is, weights fit f16.
    __device__ float limit(int r) const { return __fadd_rd(peak2[r], Lift + 8); }
    __device__ void move_peaks(float (&shrink)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float largest2 = top2(r);
            shrink[r] = 1;
            if (!(largest2 <= limit(r))) {
                shrink[r] = cuda::exp2_fast(peak2[r] - (largest2 - Lift));
                peak2[r] = largest2 - Lift;
            }
            sum[r] *= shrink[r];
        }
    }
};

}  // namespace smla::cuda_attend
