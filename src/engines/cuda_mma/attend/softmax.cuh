// The running softmax of one warp. A lane holds `Rows` heads, lane/4 and lane/4 + 8, and of each of `Groups`
// groups of 8 keys the columns 2*(lane%4) and +1; the 4 lanes of a head share its peaks.
#pragma once

#include "engines/cuda_common/ptx/math.cuh"

#include <cmath>
#include <cstdint>

namespace smla::cuda_attend {

template <int Rows>
struct alignas(8 * Rows) Peaks {
    float largest[Rows];  // product so far
    float peak2[Rows];    // logit that weights are relative to, in powers of two

    __device__ Peaks() {
        for (int r = 0; r < Rows; ++r) largest[r] = peak2[r] = -INFINITY;
    }
};

template <int Rows, int Groups>
struct Softmax {
    Peaks<Rows>* heads;  // of this lane; in shared memory: the registers are the sums'
    float sum[Rows];     // of this lane's columns

    // Sums are -0 until a first key is weighed: any sum with a weight, 0 too, is +0 or more.
    __device__ explicit Softmax(void* all) : heads(static_cast<Peaks<Rows>*>(all) + threadIdx.x / 4) {
        if (threadIdx.x % 4 == 0) *heads = Peaks<Rows>();
        __syncwarp();
        for (int r = 0; r < Rows; ++r) sum[r] = -0.f;
    }

    // Products become weights; shrink: what earlier sums are to be multiplied with. `unit` turns a product
    // into a logit in powers of two. The peak moves only when a weight could pass 2^8: sums are in f32, and
    // rounding weights to bf16 is relative. holes(n, c): column c of group n is no key.
    template <class Holes>
    __device__ void weigh(float (&s)[Groups][2 * Rows], float unit, float (&shrink)[Rows], bool some_holes,
                          const Holes& holes) {
        if (some_holes) {
#pragma unroll
            for (int i = 0; i < 2 * Rows * Groups; ++i)
                if (holes(i / (2 * Rows), i & 1)) s[i / (2 * Rows)][i % (2 * Rows)] = -INFINITY;
        }
        Peaks<Rows> peaks = *heads;
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
            peaks.largest[r] = cuda::max_nan(peaks.largest[r], top_of(s, r));
            const float largest2 = peaks.largest[r] * unit;
            shrink[r] = 1;
            if (!(largest2 <= peaks.peak2[r] + 8)) {
                shrink[r] = cuda::exp2_fast(peaks.peak2[r] - largest2);
                peaks.peak2[r] = largest2;
            }
            const float base = peaks.peak2[r] == -INFINITY ? 0.f : peaks.peak2[r];
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
        __syncwarp();  // all lanes have read
        if (threadIdx.x % 4 == 0) *heads = peaks;
    }
    __device__ bool any() const { return __float_as_uint(sum[0]) != 0x80000000u; }
    __device__ float total(int r) const {
        float out = sum[r];
        out += __shfl_xor_sync(~0u, out, 1);
        return out + __shfl_xor_sync(~0u, out, 2);
    }

private:
    static __device__ float top_of(const float (&s)[Groups][2 * Rows], int r) {
        float top = s[0][2 * r];
#pragma unroll
        for (int n = 0; n < Groups; ++n)
            top = cuda::max_nan(top, cuda::max_nan(s[n][2 * r], s[n][2 * r + 1]));
        top = cuda::max_nan(top, __shfl_xor_sync(~0u, top, 1));
        return cuda::max_nan(top, __shfl_xor_sync(~0u, top, 2));
    }
};

}  // namespace smla::cuda_attend
