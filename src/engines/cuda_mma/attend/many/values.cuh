// What the value warps of attend_many do: O += weights V for all heads of the block and a share of
// the columns, beside making the tiles of keys (maker.cuh).
#pragma once

#include "engines/cuda_mma/attend/many/maker.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

template <class T>
class Values {
public:
    __device__ explicit Values(uint32_t base)
        : base_(base),
          warp_(cuda::keep(threadIdx.x / 32 - T::score_warps)),
          lane_(cuda::keep(threadIdx.x % 32)) {}

    __device__ void walk(const Arguments& args, const ManyTiles<T>& tiles) {
        Maker<T> maker(args, tiles, base_);
        Turn<T> turn;
        WeightsTurn<T> weights;
        maker.begin();
        if constexpr (T::coded) maker.make_first();
        for (int t = 0; t < tiles.count(); ++t, turn = turn.after(1)) {
            const Turn<T> next = turn.after(T::ahead);
            if constexpr (T::coded) maker.decode(t + T::ahead, next);
            else maker.copy(t + T::ahead, next);
            cuda::mbarrier_wait(turn.full(base_), turn.parity());
            if (Mask(turn.mask(base_)).any()) {
                cuda::mbarrier_wait(weights.full(base_), weights.parity());
                add(weights, turn.keys(base_));
                weights.pass();
            }
            arrive_as_warp(turn.empty(base_), lane_);
            // by now all warps have decoded the tile in whose place records come
            if constexpr (T::coded) maker.send_next(t + T::ahead, next);
        }
    }

    __device__ void store(const Arguments& args, const Cut& cut, const Place& place) const {
        const int column = T::columns * int(warp_) + 2 * int(lane_ % 4);
#pragma unroll
        for (int i = 0; i < 2 * T::m_values; ++i) {
            const int in_block = 8 * i + int(lane_ / 4);
            const HeadRow row(args, cut, place, in_block,
                              cuda::load_shared_f32(WeightsTurn<T>::last_factor(base_, in_block)));
#pragma unroll
            for (int j = 0; j < 2 * T::n_values; ++j) {
                const float* const sums = sums_[i / 2][j / 2][j % 2];
                row.store(column + 8 * j, sums[2 * (i % 2)], sums[2 * (i % 2) + 1]);
            }
        }
    }

private:
    __device__ void add(const WeightsTurn<T>& weights, uint32_t keys) {
        const uint32_t moved = cuda::load_shared(weights.moved(base_));
        if (moved) shrink(weights, moved);
        uint32_t a[T::m_values][4];
#pragma unroll
        for (int m = 0; m < T::m_values; ++m)
            cuda::ldmatrix_x4(a[m], weights.weights(base_, 16 * m + int(lane_ & 15), int(lane_ >> 4)));
        arrive_as_warp(weights.empty(base_), lane_);
        const uint32_t at = piece_at(keys, T::pitch, lane_ & 15, lane_ >> 4) + 2 * T::columns * warp_;
#pragma unroll
        for (int n = 0; n < T::n_values; ++n) {
            uint32_t b[4];
            cuda::ldmatrix_x4_trans(b, (at ^ uint32_t(32 * (n % 4))) + uint32_t(128 * (n / 4)));
#pragma unroll
            for (int m = 0; m < T::m_values; ++m) {
                cuda::mma_bf16(sums_[m][n][0], a[m], b[0], b[1]);
                cuda::mma_bf16(sums_[m][n][1], a[m], b[2], b[3]);
            }
        }
    }
    // Score warp w has said in byte w whether the sums of its heads shrink.
    __device__ void shrink(const WeightsTurn<T>& weights, uint32_t moved) {
#pragma unroll
        for (int i = 0; i < 2 * T::m_values; ++i) {
            if (!(moved >> (8 * (i / 2)) & 1)) continue;
            const float factor = cuda::load_shared_f32(weights.factor(base_, 8 * i + int(lane_ / 4)));
#pragma unroll
            for (int j = 0; j < 4 * T::n_values; ++j)
                sums_[i / 2][j / 4][j / 2 % 2][2 * (i % 2) + j % 2] *= factor;
        }
    }

    const uint32_t base_, warp_, lane_;
    float sums_[T::m_values][T::n_values][2][4] = {};  // [16 heads, 16 columns] each
};

}  // namespace smla::cuda_attend
