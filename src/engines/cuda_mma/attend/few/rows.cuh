// 16 heads against bf16 rows: what a warp of attend_few multiplies. Its share of keys and of values is every
// fourth 16 columns.
#pragma once

#include "engines/cuda_mma/attend/few/weights.cuh"
#include "engines/cuda_mma/attend/fill.cuh"
#include "engines/cuda_mma/attend/queries.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

template <class T>
class FewRows {
public:
    using Kind = RowKind;

    __device__ explicit FewRows(const char*) {}
    // Left operands: step s holds columns 16 * (4 s + part). bf16 queries are in units of 1.
    __device__ void load_queries(const QueryRows<T::width, T::query_rows>& queries, uint32_t, float (&)[2]) {
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s) queries.operand(0, uint32_t(4 * s + part()), q_[s]);
    }

    // This warp's share of the products of its 16 heads with 32 keys.
    __device__ void score(uint32_t buffer, const RowKind&, float (&s)[4][4]) const {
        const int lane = threadIdx.x % 32, row = (lane & 7) + (lane >> 4) * 8;
        const uint32_t keys =
            piece_at(buffer, T::pitch, uint32_t(row), uint32_t(2 * part() + (lane >> 3 & 1)));
#pragma unroll
        for (int i = 0; i < 16; ++i) s[i / 4][i % 4] = 0;
#pragma unroll
        for (int k = 0; k < T::k_steps; ++k) {
            uint32_t low[4], high[4];
            cuda::ldmatrix_x4(low, keys + uint32_t(128 * k));
            cuda::ldmatrix_x4(high, keys + uint32_t(128 * k + 16 * T::pitch));
            cuda::mma_bf16(s[0], q_[k], low[0], low[1]);
            cuda::mma_bf16(s[1], q_[k], low[2], low[3]);
            cuda::mma_bf16(s[2], q_[k], high[0], high[1]);
            cuda::mma_bf16(s[3], q_[k], high[2], high[3]);
        }
    }
    // Sums += weights V.
    __device__ void add(uint32_t buffer, const RowKind&, const float (&s)[4][4]) {
        const int lane = threadIdx.x % 32;
        const uint32_t values =
            piece_at(buffer, T::pitch, uint32_t(lane & 15), uint32_t(2 * part() + (lane >> 4)));
        add_bf16_values<0, T::n_steps>(
            sums_, s, [&](int k, int n) { return values + uint32_t(k * 16 * T::pitch + 128 * n); });
    }
    __device__ void shrink(const float (&by)[2]) {
#pragma unroll
        for (int i = 0; i < 8 * T::n_steps; ++i) sums_[i / 8][i / 4 % 2][i % 4] *= by[i / 2 % 2];
    }
    // Of the 512, column c of this warp's.
    static __device__ int column_of(int c) { return 64 * (c / 16) + 16 * part() + c % 16; }
    __device__ void put(const WayOut<128>& out, smla_format) const {
#pragma unroll
        for (int i = 0; i < 4 * T::n_steps; ++i)
            out.put(threadIdx.x % 32 / 4 + 8 * (i % 2), 8 * uint32_t(i / 2) + 2 * (threadIdx.x % 4),
                    sums_[i / 4][i / 2 % 2][2 * (i % 2)], sums_[i / 4][i / 2 % 2][2 * (i % 2) + 1]);
    }

private:
    static __device__ int part() { return int(threadIdx.x) / 32; }

    uint32_t q_[T::k_steps][4];
    float sums_[T::n_steps][2][4] = {};  // columns 64 n + 16 part + 8 b
};

}  // namespace smla::cuda_attend
