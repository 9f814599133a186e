// 32 heads against half of the width of bf16 rows, and all heads against some columns of values: what a score
// warp and a value warp of attend_many multiply.
#pragma once

#include "engines/cuda_mma/attend/fill.cuh"
#include "engines/cuda_mma/attend/many/half_warp.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

template <class T>
class ScoreRows {
public:
    // What is loaded before keys are there.
    struct Early {
        uint32_t a[2][4];
    };

    __device__ explicit ScoreRows(const HalfWarp<T>& warp) : warp_(warp) {}

    // All are in registers before some go to their place in shared memory. bf16 is in units of 1.
    __device__ void load_queries(const ManyQueries<T>& queries, smla_format, float (&)[2]) {
        uint32_t rest[T::q_rest][2][4];
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s)
            warp_.take_queries(queries, s, s < T::q_steps ? q_[s] : rest[s - T::q_steps]);
        queries_are_taken<T>();
#pragma unroll
        for (int i = 0; i < T::q_rest; ++i) warp_.store_rest(i, rest[i]);
    }
    __device__ void load_early(const Reader&, Early& early) const { warp_.load_rest(0, early.a); }
    __device__ void load_first(uint32_t, Early&) const {}  // loaded before the mask is looked at: 3 % slower

    // Of both groups, with half of the width. A product waits for the one before in its sums, as long as
    // tensor cores take for four: the four sums of a step hide that.
    __device__ void multiply(uint32_t keys, const Early& early, float (&s)[2][2][4]) const {
        const auto step = [&](int k, const uint32_t(&a)[2][4]) {
            uint32_t b[4];
            load_keys(keys, k, b);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                cuda::mma_bf16(s[m][0], a[m], b[0], b[1]);
                cuda::mma_bf16(s[m][1], a[m], b[2], b[3]);
            }
        };
#pragma unroll
        for (int i = 0; i < 16; ++i) s[i / 8][i / 4 % 2][i % 4] = 0;
        step(T::q_steps, early.a);
        constexpr int kBetween = 4;  // steps whose queries are in registers
        static_assert(kBetween * (T::q_rest - 1) <= T::q_steps);
        uint32_t rest[2][4];
#pragma unroll
        for (int k = 0; k < T::q_steps; ++k) {
            const int i = k / kBetween + 1;  // which of those in shared memory
            if (i < T::q_rest && k % kBetween == 0) warp_.load_rest(i, rest);
            step(k, q_[k]);
            if (i < T::q_rest && k % kBetween == kBetween - 1) step(T::q_steps + i, rest);
        }
    }
    static __device__ uint32_t pack(float low, float high) { return cuda::pack_bf16(low, high); }

private:
    // Of one step, 16 keys.
    __device__ void load_keys(uint32_t keys, int k, uint32_t (&b)[4]) const {
        const uint32_t first =
            piece_at(keys, T::pitch, (warp_.lane & 7) + (warp_.lane >> 4) * 8, warp_.lane >> 3 & 1);
        const uint32_t half = warp_.half(), at = first + 512 * half, at_512 = (first ^ (64 * half)) + 1024;
        cuda::ldmatrix_x4(b, k < 16 ? (at ^ uint32_t(32 * (k % 4))) + uint32_t(128 * (k / 4))
                                    : at_512 ^ uint32_t(32 * (k - 16)));
    }
    const HalfWarp<T> warp_;
    uint32_t q_[T::q_steps][2][4];
};

template <class T>
class ValueRows {
public:
    using Kind = RowKind;

    __device__ ValueRows(uint32_t, uint32_t) {}

    // bf16 rows have no scales.
    template <class WeightAt>
    __device__ void prepare(uint32_t, const RowKind&, uint32_t, uint32_t, const WeightAt&) {}
    // Sums += weights V. `a`: operands of 16 heads each.
    __device__ void add(uint32_t keys, const RowKind&, uint32_t warp, uint32_t lane,
                        const uint32_t (&a)[T::m_values][4]) {
        const uint32_t at = piece_at(keys, T::pitch, lane & 15, lane >> 4) + 2 * T::columns * warp;
#pragma unroll
        for (int n = 0; n < T::n_values; ++n) {
            uint32_t b[4];
            cuda::ldmatrix_x4_trans(b, (at ^ uint32_t(32 * (n % 4))) + uint32_t(128 * (n / 4)));
#pragma unroll
            for (int m = 0; m < T::m_values; ++m) {
                cuda::mma_bf16(sums[m][n][0], a[m], b[0], b[1]);
                cuda::mma_bf16(sums[m][n][1], a[m], b[2], b[3]);
            }
        }
    }
    // Of 16 heads.
    __device__ void put(const WayOut<T::columns>& out, smla_format, uint32_t, uint32_t lane, int m) const {
#pragma unroll
        for (int i = 0; i < 4 * T::n_values; ++i) {
            const float(&s)[4] = sums[m][i / 4][i / 2 % 2];
            out.put(lane / 4 + 8 * uint32_t(i % 2), 8 * uint32_t(i / 2) + 2 * (lane % 4), s[2 * (i % 2)],
                    s[2 * (i % 2) + 1]);
        }
    }

    float sums[T::m_values][T::n_values][2][4] = {};  // [16 heads, 16 columns] each
};

}  // namespace smla::cuda_attend
