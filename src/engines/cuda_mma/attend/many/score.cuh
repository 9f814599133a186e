// What the score warps of attend_many do: products of their heads with every key, softmax, weights.
#pragma once

#include "engines/cuda_mma/attend/many/maker.cuh"
#include "engines/cuda_mma/attend/many/records.cuh"
#include "engines/cuda_mma/attend/many/rows.cuh"
#include "engines/cuda_mma/attend/softmax.cuh"

#include <type_traits>

namespace smla::cuda_attend {

template <class T>
class Scorer {
public:
    __device__ Scorer(const Arguments& args, uint32_t base)
        : args_(args),
          base_(base),
          // shuffled, where registers are so short that the assembler would read them anew for each use
          warp_(T::coded ? __shfl_sync(~0u, threadIdx.x / 32, 0) : cuda::keep(threadIdx.x / 32)),
          lane_(T::coded ? __shfl_sync(~0u, threadIdx.x % 32, threadIdx.x % 32)
                         : cuda::keep(threadIdx.x % 32)),
          softmax_(args.scale() * kLog2E),
          share_(HalfWarp<T>{base_, warp_, lane_}) {}

    __device__ void load_queries() {
        wait_for_queries<T>();
        share_.load_queries(Maker<T>::queries(base_), any_format(args_), softmax_.unit);
    }

    __device__ void walk(const ManyTiles<T>& tiles) {
        Turn<T> turn;
        WeightsTurn<T> weights;
        for (int t = 0; t < tiles.count(); ++t, turn = turn.after(1)) {
            typename Share::Early early;
            share_.load_early(tiles.reader(t), early);
            // asked now, while keys are waited for: later the answer would be waited for
            const bool free = !T::coded && cuda::mbarrier_over(weights.empty(base_), weights.parity() ^ 1);
            cuda::mbarrier_wait(turn.full(base_), turn.parity());
            share_.load_first(turn.keys(base_), early);
            const Mask mask(turn.mask(base_));
            const bool any = mask.any(), all = mask.all();
            float s[2][2][4];
            if (any) share_.multiply(turn.keys(base_), early, s);
            // read again: four registers less while products are made
            const uint32_t holes = all ? 0 : Mask(turn.mask(base_)).holes(lane());
            arrive_as_warp(turn.empty(base_), lane());
            if (t > 0 && lane() == 0) cuda::mbarrier_arrive(weights.before().scored(base_));
            if (!free) cuda::mbarrier_wait(weights.empty(base_), weights.parity() ^ 1);
            if (!any) {
                publish(weights, kNoKeys);
                continue;
            }
            exchange(weights, s);
            if (!all) leave_out_holes(holes, s[0]);
            weigh(weights, s[0]);
        }
    }

    // Statistics of this warp's heads; the factors of their sums.
    __device__ void finish(const Cut& cut, const Place& place) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float sum = softmax_.total(r), largest2 = softmax_.top2(r);
            const int64_t h = place.head + head(lane_, r);
            if (lane_ % 4 == 0 && h < args_.q.shape[1])
                cuda::store_shared(
                    WeightsTurn<T>::last_factor(base_, head(lane_, r)),
                    finish_head(args_, cut, place, h, softmax_.any(), softmax_.peak2[r], largest2, sum));
        }
    }

private:
    using Share = std::conditional_t<T::coded, ScoreRecords<T>, ScoreRows<T>>;

    // fp8: what is derived from these is computed where it is needed, not before the loop: registers.
    __device__ uint32_t warp() const { return T::coded ? cuda::keep(warp_) : warp_; }
    __device__ uint32_t lane() const { return T::coded ? cuda::keep(lane_) : lane_; }

    // Of the block: head r of a lane, whose products this warp keeps.
    __device__ int head(uint32_t lane, int r) const { return int(16 * warp() + lane / 4) + 8 * r; }

    // Products with the other half of the width join those that this warp keeps; the others go to the other
    // warp: half of them, where memory is short, to where that one's weights will lie, which only it
    // overwrites.
    __device__ void exchange(const WeightsTurn<T>& weights, float (&s)[2][2][4]) {
        const uint32_t warp = this->warp(), lane = this->lane();
        const uint32_t of_lane = base_ + 16 * lane, own = of_lane + warp * T::exchange_bytes,
                       other = of_lane + (warp ^ 1) * T::exchange_bytes;
        const uint32_t place = weights.place() * uint32_t(T::weights_bytes) + T::weights_at;
        // what is sent from `here`; half of it goes to the weights of the other warp, which are as long
        const auto sent = [&](uint32_t here, uint32_t there, uint32_t n) {
            if (T::exchange_bytes == 1024) return here + T::exchange_at + 512 * n;
            return n == 0 ? there + place : here + T::exchange_at;
        };
        cuda::named_barrier<64>(4 + int(warp / 2));
#pragma unroll
        for (uint32_t n = 0; n < 2; ++n) {
            const auto bits = [&](int i) { return __float_as_uint(s[1][n][i]); };
            cuda::store_shared(sent(own, other, n), make_uint4(bits(0), bits(1), bits(2), bits(3)));
        }
        cuda::named_barrier<64>(2 + int(warp / 2));
#pragma unroll
        for (uint32_t n = 0; n < 2; ++n) {
            const uint4 came = cuda::load_shared_4(sent(other, own, n));
            s[0][n][0] += __uint_as_float(came.x), s[0][n][1] += __uint_as_float(came.y);
            s[0][n][2] += __uint_as_float(came.z), s[0][n][3] += __uint_as_float(came.w);
        }
    }

    static __device__ void leave_out_holes(uint32_t holes, float (&s)[2][4]) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (holes >> (2 * (i / 4) + i % 2) & 1) s[i / 4][i % 4] = -INFINITY;
    }

    __device__ void weigh(WeightsTurn<T>& weights, float (&s)[2][4]) {
        float shrink[2];
        const bool moved = softmax_.weigh(s, shrink);
        if (T::exchange_bytes < 1024) __syncwarp();  // all lanes have read what lay there
        const uint32_t lane = this->lane(), at = weights.weights_of_lane(base_, this->warp(), lane);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int n = 0; n < 2; ++n)
                cuda::store_shared((n ? at ^ 16 : at) + 256 * uint32_t(r),
                                   Share::pack(s[n][2 * r], s[n][2 * r + 1]));
            if (moved && lane % 4 == 0) cuda::store_shared(weights.factor(base_, head(lane, r)), shrink[r]);
        }
        publish(weights, moved ? kMoved : 0);
    }
    __device__ void publish(WeightsTurn<T>& weights, uint32_t news) {
        const uint32_t lane = this->lane();
        if (lane == 0) cuda::store_shared_byte(weights.news(base_) + warp_, news);
        arrive_as_warp(weights.full(base_), lane);
        weights = weights.after(1);
    }

    const Arguments& args_;
    const uint32_t base_, warp_, lane_;
    Softmax<2, T::lift> softmax_;
    Share share_;
};

}  // namespace smla::cuda_attend
