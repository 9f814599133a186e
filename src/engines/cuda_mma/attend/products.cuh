// What attend's mma kernels have in common: queries as operands, the value product of one warp, its way out.
#pragma once

#include "engines/cuda_common/ptx/mma.cuh"
#include "engines/cuda_mma/attend/splits.cuh"
#include "engines/cuda_mma/attend/tile.cuh"

namespace smla::cuda_attend {

// Which part of the width is this warp's.
__device__ inline int part_of_warp() { return int(threadIdx.x) / 32 % kParts; }

// The queries of 16 heads as left operands: step s of part p holds columns 16 * (4 s + p). All loads are
// under way before the first is needed.
template <class T, class Load>
__device__ void load_queries(const Arguments& args, int t, int head, uint32_t (&q)[T::k_steps][4],
                             const Load& load) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int h = head + lane / 4 + 8 * r;
        const bool real = h < args.q.shape[1];
        const int64_t at = cuda::element(args.q, t, real ? h : 0) + 16 * part_of_warp() + 2 * (lane % 4);
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s)
#pragma unroll
            for (int i = 0; i < 2; ++i) q[s][r + 2 * i] = real ? load(at + 16 * kParts * s + 8 * i) : 0u;
    }
}
template <class T>
__device__ void load_queries(const Arguments& args, int t, int head,
                             uint32_t (&q)[T::m_tiles][T::k_steps][4]) {
    const auto* const values = static_cast<const uint16_t*>(args.q.data);
    const auto* const codes = static_cast<const uint8_t*>(args.q.data);
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m) {
        if (args.q.dtype == SMLA_BF16)
            load_queries<T>(args, t, head + 16 * m, q[m],
                            [&](int64_t at) { return *reinterpret_cast<const uint32_t*>(values + at); });
        else
            load_queries<T>(args, t, head + 16 * m, q[m], [&](int64_t at) {
                uint32_t pair, unused;
                cuda::e4m3_to_f16(codes[at] | uint32_t(codes[at + 1]) << 8, pair, unused);
                return cuda::pack_bf16(cuda::f16_low(pair), cuda::f16_high(pair));
            });
    }
}

// Where this lane reads the score's right operand: keys 0 to 15 of a buffer, columns of part p; step s lies
// 128 bytes on per step.
template <class T>
__device__ inline uint32_t score_operand(uint32_t buffer) {
    const int lane = threadIdx.x % 32;
    const int row = (lane & 7) + (lane >> 4) * 8, piece = 2 * part_of_warp() + (lane >> 3 & 1);
    return buffer + uint32_t(row * T::row + ((piece ^ (lane & 7)) << 4));
}
// And the values of keys 0 to 15: columns 16 * (4 n + part), 128 bytes on per n.
template <class T>
__device__ inline uint32_t value_operand(uint32_t buffer) {
    const int lane = threadIdx.x % 32, piece = 2 * part_of_warp() + (lane >> 4);
    return buffer + uint32_t((lane & 15) * T::row + ((piece ^ (lane & 7)) << 4));
}

// Of this warp: [16 m_tiles heads, columns 64 n + 16 part + 8 b].
template <class T>
using Sums = float[T::m_tiles][T::n_steps][2][4];

// shrink[m][r]: of head 16 m + lane / 4 + 8 r.
template <class T>
__device__ void shrink_sums(Sums<T>& sums, const float (&shrink)[T::m_tiles][2]) {
    bool changed = false;
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m) changed = changed || shrink[m][0] != 1 || shrink[m][1] != 1;
    if (!__any_sync(~0u, changed)) return;
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
        for (int i = 0; i < 8 * T::n_steps; ++i) sums[m][i / 8][i / 4 % 2][i % 4] *= shrink[m][i / 2 % 2];
}

// O += weights V for 16 keys.
template <class T>
__device__ void add_values(Sums<T>& sums, const uint32_t (&weights)[T::m_tiles][4], uint32_t values) {
#pragma unroll
    for (int n = 0; n < T::n_steps; ++n) {
        uint32_t b[4];
        cuda::ldmatrix_x4_trans(b, values + uint32_t(128 * n));
#pragma unroll
        for (int m = 0; m < T::m_tiles; ++m) {
            cuda::mma_bf16(sums[m][n][0], weights[m], b[0], b[1]);
            cuda::mma_bf16(sums[m][n][1], weights[m], b[2], b[3]);
        }
    }
}

// Where a block stands. Made anew where it is needed: registers.
struct Place {
    int part, token, head;  // token * splits + split; the first head of the block
    __device__ Place(const Cut& cut, int heads) {
        const unsigned block = unsigned(derive_here(int(blockIdx.x)));
        part = int(block / unsigned(cut.head_tiles));
        token = part / cut.splits;
        head = int(block % unsigned(cut.head_tiles)) * heads;
    }
};

// What one head comes to: statistics of a split, or lse and the factor of its sums.
__device__ inline void finish_head(const Arguments& args, const Cut& cut, const Place& place, int64_t h,
                                   bool any, float peak2, float largest, float sum, float& factor) {
    if (cut.splits > 1) {
        cut.parts.statistics[place.part * args.q.shape[1] + h] = {peak2, sum, largest, any ? 1.f : 0.f};
        return;
    }
    Totals totals = {0.f, -INFINITY};
    if (any) totals = finish(peak2 * kLn2, sum, sink_of(args, h));
    factor = totals.factor;
    store_statistics(args, place.token, h, totals.lse, largest * args.scale());
}

// Sums of this warp, whose first head is `first` of the block: to the output, or to the scratch of splits.
template <class T>
__device__ void store_sums(const Arguments& args, const Cut& cut, const Place& place, int first,
                           const float* factors, const Sums<T>& sums) {
    const int lane = threadIdx.x % 32;
    const int64_t heads = args.q.shape[1];
    const int column = 16 * part_of_warp() + 2 * (lane % 4);
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int in_block = first + 16 * m + lane / 4 + 8 * r;
            const int64_t h = place.head + in_block;
            if (h >= heads) continue;
            const bool whole = cut.splits == 1;
            const float factor = whole ? factors[in_block] : 1.f;
            const int64_t out_at = whole ? cuda::element(args.out, place.token, h) + column : 0;
            float* const sums_at = cut.parts.sums + (place.part * heads + h) * kValueWidth + column;
#pragma unroll
            for (int n = 0; n < T::n_steps; ++n)
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    const int d = 64 * n + 8 * b;
                    const float low = sums[m][n][b][2 * r] * factor, high = sums[m][n][b][2 * r + 1] * factor;
                    if (whole) store_pair(args.out, out_at + d, low, high);
                    else *reinterpret_cast<float2*>(sums_at + d) = make_float2(low, high);
                }
        }
}

}  // namespace smla::cuda_attend
