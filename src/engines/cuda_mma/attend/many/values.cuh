// What the value warps of attend_many do: O += weights V for all heads of the block and a share of
// the columns, beside making the tiles of keys (maker.cuh).
#pragma once

#include "engines/cuda_mma/attend/many/maker.cuh"
#include "engines/cuda_mma/attend/many/records.cuh"
#include "engines/cuda_mma/attend/many/rows.cuh"

#include <type_traits>

namespace smla::cuda_attend {

template <class T>
class Values {
public:
    __device__ explicit Values(uint32_t base)
        : base_(base),
          warp_(cuda::keep(threadIdx.x / 32 - T::score_warps)),
          lane_(cuda::keep(threadIdx.x % 32)),
          share_(base_, warp_) {}

    __device__ void walk(const ManyTiles<T>& tiles, smla_format format) {
        Maker<T> maker(tiles, base_);
        Turn<T> turn;
        WeightsTurn<T> weights;
        maker.begin(format);
        for (int t = 0; t < tiles.count(); ++t, turn = turn.after(1), weights = weights.after(1)) {
            maker.copy(t + T::ahead, turn.after(T::ahead));
            const typename Share::Kind kind(tiles.reader(t));
            // who has seen the weights sees the keys they were made of
            cuda::mbarrier_wait(weights.full(base_), weights.parity());
            const uint32_t news = cuda::load_shared(weights.news(base_));
            const bool last = t + 1 == tiles.count();
            if (news & kNoKeys) release(weights, last);
            else add(weights, news, last, turn.keys(base_), kind);
            arrive_as_warp(turn.empty(base_), lane_);
        }
    }

    // By way of where keys and queries lie, which nobody reads any more.
    __device__ void store(const Arguments& args, const Cut& cut, const Place& place) const {
        const smla_format format = any_format(args);
        const WayOut<T::columns> out{base_ + warp_ * WayOut<T::columns>::bytes};
        static_assert(T::value_warps * WayOut<T::columns>::bytes <= T::exchange_at);
#pragma unroll
        for (int m = 0; m < T::m_values; ++m) {
            share_.put(out, format, warp_, lane_, m);
            out.take(args, cut, place, 16 * m, WeightsTurn<T>::last_factor(base_, 16 * m),
                     [&](int c) { return T::columns * int(warp_) + c; });
        }
    }

private:
    using Share = std::conditional_t<T::coded, ValueRecords<T>, ValueRows<T>>;

    __device__ void add(const WeightsTurn<T>& weights, uint32_t news, bool last, uint32_t keys,
                        const typename Share::Kind& kind) {
        if (news) shrink(weights, news);
        share_.prepare(keys, kind, warp_, lane_, [&](int head, int key) {
            return weights.weights(base_, head, key / 8) + uint32_t(2 * (key % 8));
        });
        uint32_t a[T::m_values][4];
#pragma unroll
        for (int m = 0; m < T::m_values; ++m)
            cuda::ldmatrix_x4(a[m], weights.weights(base_, 16 * m + int(lane_ & 15), int(lane_ >> 4)));
        release(weights, last);
        share_.add(keys, kind, warp_, lane_, a);
    }
    // The place of weights that are in registers is free once the next tile is multiplied; before, score
    // warps could come to another phase of `scored`.
    __device__ void release(const WeightsTurn<T>& weights, bool last) {
        if (!last) cuda::mbarrier_wait(weights.scored(base_), weights.parity());
        arrive_as_warp(weights.empty(base_), lane_);
    }
    // Score warp w has said in byte w whether the sums of its heads shrink.
    __device__ void shrink(const WeightsTurn<T>& weights, uint32_t news) {
#pragma unroll
        for (int i = 0; i < 2 * T::m_values; ++i) {
            if (!(news >> (8 * (i / 2)) & kMoved)) continue;
            const float factor = cuda::load_shared_f32(weights.factor(base_, 8 * i + int(lane_ / 4)));
#pragma unroll
            for (int j = 0; j < 4 * T::n_values; ++j)
                share_.sums[i / 2][j / 4][j / 2 % 2][2 * (i % 2) + j % 2] *= factor;
        }
    }

    const uint32_t base_, warp_, lane_;
    Share share_;
};

}  // namespace smla::cuda_attend
