// The running softmax of one warp's 16 heads over 32 keys. A lane holds two heads, lane/4 and lane/4 + 8, and
// of each n8 tile of keys the columns 2*(lane%4) and +1. All warps of a group hold the same.
#pragma once

#include "engines/cuda_common/ptx/math.cuh"

#include <cmath>
#include <cstdint>

namespace smla::cuda_attend {

// What the four lanes of two heads share. In shared memory: the registers are the sums'.
struct alignas(16) HeadPair {
    float largest[2] = {-INFINITY, -INFINITY};  // product so far
    float peak2[2] = {-INFINITY, -INFINITY};    // logit that weights are relative to, in powers of two
};

struct Softmax {
    HeadPair* heads;  // of this lane
    // Of this lane's columns. -0 until a first key is weighed: any sum with a weight, 0 too, is +0 or more.
    float sum[2] = {-0.f, -0.f};

    __device__ explicit Softmax(HeadPair* pairs) : heads(pairs + threadIdx.x / 4) {
        if (threadIdx.x % 4 == 0) *heads = HeadPair();
        __syncwarp();
    }

    // Products become weights; shrink: what earlier sums are to be multiplied with. `unit` turns a product
    // into a logit in powers of two. The peak moves only when a weight could pass 2^8: sums are in f32, and
    // rounding weights to bf16 is relative.
    __device__ void weigh(float (&s)[4][4], uint32_t mask, float unit, float (&shrink)[2]) {
        const int column = 2 * int(threadIdx.x % 4);
        if (mask != ~0u) {
#pragma unroll
            for (int i = 0; i < 16; ++i)
                if (!(mask >> (8 * (i / 4) + column + (i & 1)) & 1)) s[i / 4][i % 4] = -INFINITY;
        }
        HeadPair now = *heads;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            now.largest[r] = cuda::max_nan(now.largest[r], top_of(s, r));
            const float largest2 = now.largest[r] * unit;
            shrink[r] = 1;
            if (!(largest2 <= now.peak2[r] + 8)) {
                shrink[r] = cuda::exp2_fast(now.peak2[r] - largest2);
                now.peak2[r] = largest2;
            }
            const float base = now.peak2[r] == -INFINITY ? 0.f : now.peak2[r];
            float added = 0;
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& weight = s[n][2 * r + c];
                    weight = cuda::exp2_fast(fmaf(weight, unit, -base));
                    added += weight;
                }
            sum[r] = sum[r] * shrink[r] + added;
        }
        __syncwarp();  // all lanes have read
        if (threadIdx.x % 4 == 0) *heads = now;
    }
    __device__ bool any() const { return __float_as_uint(sum[0]) != 0x80000000u; }
    __device__ float total(int r) const {
        float out = sum[r];
        out += __shfl_xor_sync(~0u, out, 1);
        return out + __shfl_xor_sync(~0u, out, 2);
    }

private:
    static __device__ float top_of(const float (&s)[4][4], int r) {
        float top = s[0][2 * r];
#pragma unroll
        for (int n = 0; n < 4; ++n) top = cuda::max_nan(top, cuda::max_nan(s[n][2 * r], s[n][2 * r + 1]));
        top = cuda::max_nan(top, __shfl_xor_sync(~0u, top, 1));
        return cuda::max_nan(top, __shfl_xor_sync(~0u, top, 2));
    }
};

}  // namespace smla::cuda_attend
