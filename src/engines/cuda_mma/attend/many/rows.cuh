// 32 heads against half of the width of bf16 rows, and all heads against some columns of values: what a score
// warp and a value warp of attend_many multiply.
#pragma once

#include "engines/cuda_mma/attend/fill.cuh"
#include "engines/cuda_mma/attend/many/half_warp.cuh"
#include "engines/cuda_mma/attend/queries.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

template <class T>
class ScoreRows {
public:
    // What is loaded before keys are there, and as soon as they are.
    struct Early {
        uint32_t a[2][4], b[4];
    };

    __device__ explicit ScoreRows(const HalfWarp<T>& warp) : warp_(warp) {}

    // bf16: all loads are under way before the first is needed; e4m3 comes byte by byte, which takes
    // registers. bf16 queries are in units of 1.
    __device__ void load_queries(const Arguments& args, const Place& place, float (&)[2]) {
        const QueryPairs pairs(args.q);
        Rest rest;
        if (pairs.bf16) {
            const auto load = [&](int64_t at) { return pairs.of_bf16(at); };
            load_steps<0>(args, place, load, q_);
            load_steps<T::q_steps>(args, place, load, rest);
            store_rest(rest);
        } else {
            const auto load = [&](int64_t at) { return pairs.of_e4m3(at); };
            load_steps<T::q_steps>(args, place, load, rest);
            store_rest(rest);
            __syncwarp();
            load_steps<0>(args, place, load, q_);
        }
    }
    __device__ void load_early(const Reader&, Early& early) const { warp_.load_rest(0, early.a); }
    __device__ void load_first(uint32_t keys, Early& early) const {
        if (T::keys_early) load_keys(keys, T::q_steps, early.b);
    }

    // Of both groups, with half of the width. A product waits for the one before in its sums, as long as
    // tensor cores take for four: the four sums of a step hide that.
    __device__ void multiply(uint32_t keys, const Early& early, float (&s)[2][2][4]) const {
        const auto multiply_keys = [&](const uint32_t(&a)[2][4], const uint32_t(&b)[4]) {
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                cuda::mma_bf16(s[m][0], a[m], b[0], b[1]);
                cuda::mma_bf16(s[m][1], a[m], b[2], b[3]);
            }
        };
        const auto step = [&](int k, const uint32_t(&a)[2][4]) {
            uint32_t b[4];
            load_keys(keys, k, b);
            multiply_keys(a, b);
        };
#pragma unroll
        for (int i = 0; i < 16; ++i) s[i / 8][i / 4 % 2][i % 4] = 0;
        if (T::keys_early) multiply_keys(early.a, early.b);
        else step(T::q_steps, early.a);
        uint32_t rest[2][4];
#pragma unroll
        for (int k = 0; k < T::q_steps; ++k) {
            if (k + 1 < T::q_rest) warp_.load_rest(k + 1, rest);
            step(k, q_[k]);
            if (k + 1 < T::q_rest) step(T::q_steps + k + 1, rest);
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
    using Rest = uint32_t[T::q_rest][2][4];

    // First of the 16 columns that this warp multiplies in a step: a half of the first 512, of the other 64.
    __device__ int column(int step) const {
        const int half = int(warp_.half());
        return step < 16 ? 256 * half + 16 * step : 512 + 32 * half + 16 * (step - 16);
    }
    // Steps `First` to the last that `a` has room for.
    template <int First, class Load, int Steps>
    __device__ void load_steps(const Arguments& args, const Place& place, const Load& load,
                               uint32_t (&a)[Steps][2][4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int group = i / 2, r = i % 2, h = place.head + warp_.head(group, r);
            const bool real = h < args.q.shape[1];
            const int64_t at = cuda::element(args.q, place.token, real ? h : 0) + int(2 * (warp_.lane % 4));
#pragma unroll
            for (int j = 0; j < 2 * Steps; ++j)
                a[j / 2][group][r + 2 * (j % 2)] = real ? load(at + column(First + j / 2) + 8 * (j % 2)) : 0u;
        }
    }
    __device__ void store_rest(const Rest& rest) const {
#pragma unroll
        for (int i = 0; i < T::q_rest; ++i) warp_.store_rest(i, rest[i]);
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
