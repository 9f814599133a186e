// Weights of 16 heads and 32 keys, as Softmax leaves them, on their way into products with values.
#pragma once

#include "engines/cuda_common/ptx/mma.cuh"

namespace smla::cuda_attend {

// Weights of 16 keys, groups 2 k and 2 k + 1, as a left operand. pack(group, low, high) makes a pair.
template <int Groups, class Pack>
__device__ inline void pack_weights(const float (&s)[Groups][4], int k, const Pack& pack,
                                    uint32_t (&operand)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int n = 2 * k + i / 2, c = 2 * (i % 2);
        operand[i] = pack(n, s[n][c], s[n][c + 1]);
    }
}

// Sums of `Count` times 16 columns, from the `First` on, += weights times bf16 values. row_at(k, n): this
// lane's row of 16 keys from 16 k on and 16 columns from 16 n on (mma_bf16_rows).
template <int First, int Count, int N, class RowAt>
__device__ inline void add_bf16_values(float (&sums)[N][2][4], const float (&s)[4][4], const RowAt& row_at) {
    const auto pack = [](int, float low, float high) { return cuda::pack_bf16(low, high); };
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        uint32_t weights[4];
        pack_weights(s, k, pack, weights);
#pragma unroll
        for (int n = 0; n < Count; ++n) cuda::mma_bf16_rows(sums[First + n], weights, row_at(k, n));
    }
}

}  // namespace smla::cuda_attend
