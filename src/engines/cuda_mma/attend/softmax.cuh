// The running softmax of one warp. A lane holds `Rows` heads, lane/4 and lane/4 + 8, and of each of `Groups`
// groups of 8 keys the columns 2*(lane%4) and +1; the 4 lanes of a head share its peak.
#pragma once

#include "engines/cuda_common/ptx/math.cuh"

#include <cmath>
#include <cstdint>

namespace smla::cuda_attend {

template <int Rows, int Groups>
struct Softmax {
    float peak2[Rows];    // logit that weights are relative to, in powers of two
    float largest[Rows];  // product so far, of this lane's columns
    float sum[Rows];      // of this lane's columns

    // Sums are -0 until a first key is weighed: any sum with a weight, 0 too, is +0 or more.
    __device__ Softmax() {
        for (int r = 0; r < Rows; ++r) peak2[r] = largest[r] = -INFINITY, sum[r] = -0.f;
    }

    // Products become weights; shrink: what earlier sums are to be multiplied with; false: nothing. `unit`
    // turns a product into a logit in powers of two. The peak moves only when a weight could pass 2^8: sums
    // are in f32, and rounding weights to bf16 is relative. So the lanes of a head rarely need to know each
    // other's products. holes(n, c): column c of group n is no key.
    template <class Holes>
    __device__ bool weigh(float (&s)[Groups][2 * Rows], float unit, float (&shrink)[Rows], bool some_holes,
                          const Holes& holes) {
        if (some_holes) {
#pragma unroll
            for (int i = 0; i < 2 * Rows * Groups; ++i)
                if (holes(i / (2 * Rows), i & 1)) s[i / (2 * Rows)][i % (2 * Rows)] = -INFINITY;
        }
        bool moves = false;
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
            largest[r] = cuda::max_nan(largest[r], top_of(s, r));
            moves = moves || !(largest[r] * unit <= peak2[r] + 8);
            shrink[r] = 1;
        }
        moves = __any_sync(~0u, moves);
        if (moves) move_peaks(unit, shrink);
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
            const float base = peak2[r] == -INFINITY ? 0.f : peak2[r];
            float added = 0;
#pragma unroll
            for (int n = 0; n < Groups; ++n)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& weight = s[n][2 * r + c];
                    weight = cuda::exp2_fast(fmaf(weight, unit, -base));
                    added += weight;
                }
            sum[r] = sum[r] * shrink[r] + added;
        }
        return moves;
    }
    __device__ bool any() const { return __float_as_uint(sum[0]) != 0x80000000u; }
    __device__ float total(int r) const {
        float out = sum[r];
        out += __shfl_xor_sync(~0u, out, 1);
        return out + __shfl_xor_sync(~0u, out, 2);
    }
    __device__ float largest_of_head(int r) const {
        const float two = cuda::max_nan(largest[r], __shfl_xor_sync(~0u, largest[r], 1));
        return cuda::max_nan(two, __shfl_xor_sync(~0u, two, 2));
    }

private:
    __device__ void move_peaks(float unit, float (&shrink)[Rows]) {
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
            const float largest2 = largest_of_head(r) * unit;
            if (largest2 <= peak2[r] + 8) continue;
            shrink[r] = cuda::exp2_fast(peak2[r] - largest2);
            peak2[r] = largest2;
        }
    }
    static __device__ float top_of(const float (&s)[Groups][2 * Rows], int r) {
        float top = cuda::max_nan(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
        for (int n = 1; n < Groups; ++n)
            top = cuda::max_nan(top, cuda::max_nan(s[n][2 * r], s[n][2 * r + 1]));
        return top;
    }
};

}  // namespace smla::cuda_attend
