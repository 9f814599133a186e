// What the score warps of attend_many do: products of their heads with every key, softmax, weights.
#pragma once

#include "engines/cuda_mma/attend/many/maker.cuh"
#include "engines/cuda_mma/attend/queries.cuh"
#include "engines/cuda_mma/attend/softmax.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

template <class T>
class Scorer {
public:
    __device__ Scorer(const Arguments& args, uint32_t base)
        : args_(args),
          base_(base),
          warp_(cuda::keep(threadIdx.x / 32)),
          lane_(cuda::keep(threadIdx.x % 32)),
          softmax_(args.scale() * kLog2E) {}

    // bf16: all loads are under way before the first is needed; e4m3 comes byte by byte, which takes
    // registers.
    __device__ void load_queries(const Place& place) {
        const QueryPairs pairs(args_.q);
        Rest rest;
        if (pairs.bf16) {
            const auto load = [&](int64_t at) { return pairs.of_bf16(at); };
            load_steps<0>(place, load, q_);
            load_steps<T::q_steps>(place, load, rest);
            store_rest(rest);
        } else {
            const auto load = [&](int64_t at) { return pairs.of_e4m3(at); };
            load_steps<T::q_steps>(place, load, rest);
            store_rest(rest);
            __syncwarp();
            load_steps<0>(place, load, q_);
        }
    }

    __device__ void walk(const ManyTiles<T>& tiles) {
        Turn<T> turn;
        WeightsTurn<T> weights;
        cuda::named_barrier_arrive<64>(sent_is_read(warp_ ^ 1));
        for (int left = tiles.count(); left > 0; --left, turn = turn.after(1)) {
            uint32_t early[2][4];
            load_rest(0, early);
            cuda::mbarrier_wait(turn.full(base_), turn.parity());
            const Mask mask(turn.mask(base_));
            const bool any = mask.any(), all = mask.all();
            float s[2][2][4];
            if (any) multiply(turn.keys(base_), early, s);
            // read again: four registers less while products are made
            const uint32_t holes = all ? 0 : Mask(turn.mask(base_)).holes(lane_);
            arrive_as_warp(turn.empty(base_), lane_);
            if (!any) continue;
            exchange(s);
            if (!all) leave_out_holes(holes, s[0]);
            weigh(weights, s[0]);
            weights.pass();
        }
        cuda::named_barrier<64>(sent_is_read(warp_));
    }

    // Statistics of this warp's heads; the factors of their sums.
    __device__ void finish(const Cut& cut, const Place& place) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float sum = softmax_.total(r), largest = softmax_.top(r);
            const int64_t h = place.head + head(r);
            if (lane_ % 4 == 0 && h < args_.q.shape[1])
                cuda::store_shared(
                    WeightsTurn<T>::last_factor(base_, head(r)),
                    finish_head(args_, cut, place, h, softmax_.any(), softmax_.peak2[r], largest, sum));
        }
    }

private:
    using Rest = uint32_t[T::q_rest][2][4];

    // Of the block: head r of this lane, whose products this warp keeps.
    __device__ int head(int r) const { return int(16 * warp_ + lane_ / 4) + 8 * r; }

    // First of the 16 columns that this warp multiplies in a step: a half of the first 512, of the other 64.
    __device__ int column(int step) const {
        const int half = int(warp_ % 2);
        return step < 16 ? 256 * half + 16 * step : 512 + 32 * half + 16 * (step - 16);
    }
    // Queries as left operands; group 0 is the heads that this warp keeps, group 1 those of the other of its
    // pair. Steps `First` to the last that `a` has room for.
    template <int First, class Load, int Steps>
    __device__ void load_steps(const Place& place, const Load& load, uint32_t (&a)[Steps][2][4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int group = i / 2, r = i % 2;
            const int h = place.head + int(16 * (warp_ ^ uint32_t(group)) + lane_ / 4) + 8 * r;
            const bool real = h < args_.q.shape[1];
            const int64_t at = cuda::element(args_.q, place.token, real ? h : 0) + int(2 * (lane_ % 4));
#pragma unroll
            for (int j = 0; j < 2 * Steps; ++j)
                a[j / 2][group][r + 2 * (j % 2)] = real ? load(at + column(First + j / 2) + 8 * (j % 2)) : 0u;
        }
    }
    // Those of the last steps lie in shared memory, each lane's in a place of its own.
    __device__ uint32_t rest_at(int operand) const {
        return base_ + T::queries_at + warp_ * T::queries_bytes + uint32_t(512 * operand) + 16 * lane_;
    }
    __device__ void store_rest(const Rest& rest) const {
#pragma unroll
        for (int i = 0; i < 2 * T::q_rest; ++i) {
            const uint32_t(&a)[4] = rest[i / 2][i % 2];
            cuda::store_shared(rest_at(i), make_uint4(a[0], a[1], a[2], a[3]));
        }
    }
    __device__ void load_rest(int step, uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const uint4 rest = cuda::load_shared_4(rest_at(2 * step + m));
            a[m][0] = rest.x, a[m][1] = rest.y, a[m][2] = rest.z, a[m][3] = rest.w;
        }
    }

    // Of both groups, with half of the width. A product waits for the one before in its sums, as long as
    // tensor cores take for four: the four sums of a step hide that.
    __device__ void multiply(uint32_t keys, const uint32_t (&early)[2][4], float (&s)[2][2][4]) const {
        const uint32_t first = piece_at(keys, T::pitch, (lane_ & 7) + (lane_ >> 4) * 8, lane_ >> 3 & 1);
        const uint32_t half = warp_ % 2, at = first + 512 * half, at_512 = (first ^ (64 * half)) + 1024;
        const auto step = [&](int k, const uint32_t(&a)[2][4]) {
            uint32_t b[4];
            cuda::ldmatrix_x4(b, k < 16 ? (at ^ uint32_t(32 * (k % 4))) + uint32_t(128 * (k / 4))
                                        : at_512 ^ uint32_t(32 * (k - 16)));
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                cuda::mma_bf16(s[m][0], a[m], b[0], b[1]);
                cuda::mma_bf16(s[m][1], a[m], b[2], b[3]);
            }
        };
#pragma unroll
        for (int i = 0; i < 16; ++i) s[i / 8][i / 4 % 2][i % 4] = 0;
        step(T::q_steps, early);
        uint32_t rest[2][4];
#pragma unroll
        for (int k = 0; k < T::q_steps; ++k) {
            if (k + 1 < T::q_rest) load_rest(k + 1, rest);
            step(k, q_[k]);
            if (k + 1 < T::q_rest) step(T::q_steps + k + 1, rest);
        }
    }

    // Products with the other half of the width join those that this warp keeps; the others go to the other
    // warp.
    __device__ void exchange(float (&s)[2][2][4]) {
        const auto memory = [&](uint32_t warp, int n) {
            return base_ + T::exchange_at + warp * T::exchange_bytes + uint32_t(512 * n) + 16 * lane_;
        };
        cuda::named_barrier<64>(sent_is_read(warp_));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const auto bits = [&](int i) { return __float_as_uint(s[1][n][i]); };
            cuda::store_shared(memory(warp_, n), make_uint4(bits(0), bits(1), bits(2), bits(3)));
        }
        cuda::named_barrier<64>(2 + int(warp_ / 2));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const uint4 other = cuda::load_shared_4(memory(warp_ ^ 1, n));
            s[0][n][0] += __uint_as_float(other.x), s[0][n][1] += __uint_as_float(other.y);
            s[0][n][2] += __uint_as_float(other.z), s[0][n][3] += __uint_as_float(other.w);
        }
        cuda::named_barrier_arrive<64>(sent_is_read(warp_ ^ 1));
    }
    static __device__ int sent_is_read(uint32_t warp) { return 4 + int(warp); }

    static __device__ void leave_out_holes(uint32_t holes, float (&s)[2][4]) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (holes >> (2 * (i / 4) + i % 2) & 1) s[i / 4][i % 4] = -INFINITY;
    }

    __device__ void weigh(const WeightsTurn<T>& weights, float (&s)[2][4]) {
        float shrink[2];
        const bool moved = softmax_.weigh(s, shrink);
        cuda::mbarrier_wait(weights.empty(base_), weights.parity() ^ 1);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int n = 0; n < 2; ++n)
                cuda::store_shared(weights.weights(base_, head(r), n) + 4 * (lane_ % 4),
                                   cuda::pack_bf16(s[n][2 * r], s[n][2 * r + 1]));
            if (moved && lane_ % 4 == 0) cuda::store_shared(weights.factor(base_, head(r)), shrink[r]);
        }
        if (lane_ == 0) cuda::store_shared_byte(weights.moved(base_) + warp_, moved);
        arrive_as_warp(weights.full(base_), lane_);
    }

    const Arguments& args_;
    const uint32_t base_, warp_, lane_;
    Softmax<2> softmax_;
    uint32_t q_[T::q_steps][2][4];
};

}  // namespace smla::cuda_attend
