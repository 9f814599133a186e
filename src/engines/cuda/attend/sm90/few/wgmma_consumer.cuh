// Consumer of 32 heads, which are columns of wgmma: scores, softmax and values of a warpgroup's heads.
#pragma once

#include "engines/cuda/attend/sm90/few/consumer.cuh"

namespace smla::cuda_attend::sm90::few {

// Keys are the first operand, in registers: rows 16 w + lane / 4 and + 8 of warp w for scores, columns
// 16 w + 2 (lane / 4) and + 1 of each 64 for values. So a lane's products belong to two keys, or two columns,
// and to heads 8 i + 2 (lane % 4) and + 1.
template <class Shape>
class WgmmaConsumer : public Consumer<Shape> {
    using Base = Consumer<Shape>;
    using Base::barrier_, Base::base_, Base::own_, Base::queries_, Base::lane_, Base::warp_;
    using Base::kPitch, Base::kStages;
    using typename Base::Own;
    using typename Base::Shared;
    static constexpr int kPairs = Shape::pairs;

public:
    static constexpr int kLaneHeads = 2 * kPairs,
                         kProducts = 4 * kPairs;          // of a lane, per 64 keys or columns
    static constexpr int kRun = 2;                        // neighbouring columns that a lane has of a head
    static constexpr int kFirstStep = 4, kLastStep = 16;  // between lanes that have the same heads

    float o[8][kProducts];  // sums of weights times values, of columns 64 m and on
    float sum[2 * kPairs];  // of the weights of the lane's keys; -0.f: no key seen
    float largest[Shape::largest_in_shared ? 1 : 2 * kPairs];  // product; or in shared memory

    __device__ WgmmaConsumer(uint32_t base, uint32_t group) : Base(base, group) {
#pragma unroll
        for (auto& of_columns : o)
#pragma unroll
            for (float& value : of_columns) value = 0;
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i) sum[i] = -0.f, set_largest(i, -INFINITY);
    }

    // The lane's first head; the others are head_step(j) further.
    __device__ int first_head() const { return 2 * int(lane_ % 4); }
    static constexpr int head_step(int j) { return 8 * (j / 2) + j % 2; }
    // Which of the lane's heads a product belongs to.
    static constexpr int head_of(int product) { return product / 4 * 2 + product % 2; }
    // The lane's columns of each 64.
    __device__ int column() const { return 16 * int(warp_) + kRun * int(lane_ / 4); }
    // The value of head j in column c of those.
    static constexpr int value_of(int j, int c) { return j / 2 * 4 + j % 2 + 2 * c; }
    __device__ float largest_of(int j) const {
        return Shape::largest_in_shared ? cuda::load_shared_f32(largest_at(j)) : largest[j];
    }
    // Of the lanes that have the same heads, one speaks for them: the number of its first head.
    __device__ bool speaks_for_heads() const { return lane_ < 4; }
    __device__ uint32_t spoken_head() const { return 2 * lane_; }

    // turn: of the warpgroup's own tiles.
    __device__ void attend(int tiles) {
#pragma unroll 1
        for (uint32_t tile = this->group_, turn = 0; int(tile) < tiles; tile += Shape::tile_groups, ++turn) {
            const uint32_t stage = tile % kStages, at = stage * kKeys * kPitch;
            this->wait_for_records(tile);
            float s[kProducts];
            score(turn, at, s);
            const uint2 valid = this->valid(stage);
            mask(valid, s);
            weigh_tile(turn, at, s, (valid.x | valid.y) != 0);
            if (this->is_out_of_range(turn)) add_out_of_range_values(turn, at, stage);
            else add_values(turn, at, stage);
        }
    }

private:
    __device__ uint32_t largest_at(int i) const {
        return base_ + uint32_t(offsetof(Shared, largest)) +
               4 * (uint32_t(i) * Shape::consumers + threadIdx.x);
    }
    __device__ void set_largest(int i, float value) {
        if constexpr (Shape::largest_in_shared) cuda::store_shared(largest_at(i), value);
        else largest[i] = value;
    }
    // s = the products of codes and queries: of a cache with one scale, their sum; else rope, plus the sum
    // over groups of 128 columns of scale * products. Two accumulators in turn: that of a group is read while
    // the next one is multiplied.
    __device__ void score(uint32_t turn, uint32_t at, float (&s)[kProducts]) {
        const uint64_t queries = cuda::k_major(queries_);
        const uint32_t scales = first_scales(at);
        uint32_t codes[2][4], a[2][8];
        this->load_codes(at, 0, codes[0]);
        this->load_codes(at, 1, codes[1]);
        if (Shape::scaled) this->note_scales(turn, scales);
        float group[2][kProducts];
#pragma unroll
        for (uint32_t b = 0; b != kRope; ++b) {
#pragma unroll
            for (uint32_t k = 0; k < 2; ++k) {
                uint32_t words[4];
                this->load_rope(at, b, k, words);
#pragma unroll
                for (int i = 0; i < 4; ++i) a[b][4 * k + i] = words[i];
            }
            multiply<cuda::Half::bf16>(s, a[b], cuda::advanced(queries, 8 * Shape::query_tile + 64 * b),
                                       b == 0);
        }
        if (kRope) cuda::wgmma_wait<1>();
#pragma unroll
        for (uint32_t b = 0; b < kBatches; ++b) {
            uint32_t(&own)[8] = a[b % 2];
#pragma unroll
            for (uint32_t k = 0; k < 2; ++k) {
                cuda::e4m3_to_f16(codes[b % 2][2 * k], own[4 * k], own[4 * k + 2]);
                cuda::e4m3_to_f16(codes[b % 2][2 * k + 1], own[4 * k + 1], own[4 * k + 3]);
            }
            if (b + 2 < kBatches) this->load_codes(at, b + 2, codes[b % 2]);
            const uint64_t q = cuda::advanced(queries, b / 2 * Shape::query_tile + b % 2 * 64);
            if (Shape::scaled) multiply<cuda::Half::f16>(group[b / 4 % 2], own, q, b % 4 == 0);
            else multiply<cuda::Half::f16>(s, own, q, b == 0);
            if (b + 1 < kBatches) cuda::wgmma_wait<1>();
            if (Shape::scaled && b >= 4 && b % 4 == 0)
                add_group(scales, b / 4 - 1, group[(b / 4 - 1) % 2], s);
        }
        cuda::wgmma_wait<0>();
        if (Shape::scaled) add_group(scales, 3, group[1], s);
    }
    // Batches of 32 columns.
    static constexpr uint32_t kBatches = Shape::batches, kRope = Shape::rope_batches;

    // The products of 32 columns; `first`: of those that are summed.
    template <cuda::Half Type>
    static __device__ void multiply(float (&sums)[kProducts], const uint32_t (&keys)[8], uint64_t queries,
                                    bool first) {
        cuda::wgmma_fence();
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k)
            cuda::wgmma_few<Type>(sums, keys + 4 * k, cuda::advanced(queries, 32 * k), !first || k != 0);
        cuda::wgmma_commit();
    }
    __device__ void add_group(uint32_t scales, uint32_t g, const float (&products)[kProducts],
                              float (&s)[kProducts]) const {
        float scale[2];
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) scale[r] = cuda::load_shared_f32(scales + 8 * r * kPitch + 4 * g);
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
            const float product = scale[i / 2 % 2] * products[i];
            s[i] = g == 0 && !Shape::rope ? product : s[i] + product;
        }
    }
    // Of the lane's first key; the second is 8 records further.
    __device__ uint32_t first_scales(uint32_t at) const {
        return this->scales_of(at, 16 * warp_ + lane_ / 4);
    }
    __device__ void mask(const uint2& valid, float (&s)[kProducts]) const {
        if ((valid.x & valid.y) == ~0u) return;
        const uint32_t bits = (warp_ < 2 ? valid.x : valid.y) >> (16 * (warp_ % 2) + lane_ / 4);
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
            if (!(bits >> (8 * (i / 2 % 2)) & 1)) s[i] = -INFINITY;
    }

    // Publishes the tile's weights; those of a tile out of range are bf16, without scales.
    __device__ void weigh_tile(uint32_t turn, uint32_t at, const float (&s)[kProducts], bool any) {
        float added[2 * kPairs];
        if (Shape::scaled)  // all have read the weights of the tile before
            cuda::named_barrier<kWarpgroup>(barrier_);
        if (cuda::named_barrier_or<kWarpgroup>(barrier_, weigh<cuda::Half::f16>(turn, at, s, added))) {
            raise_peaks(s);
            weigh<cuda::Half::f16>(turn, at, s, added);
            cuda::named_barrier<kWarpgroup>(barrier_);
        }
        if (this->is_out_of_range(turn)) {
            cuda::named_barrier<kWarpgroup>(barrier_);
            weigh<cuda::Half::bf16>(turn, at, s, added);
            cuda::named_barrier<kWarpgroup>(barrier_);
        }
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i) {
            if (any) sum[i] += added[i];
            set_largest(i, cuda::max_nan(largest_of(i), larger(s, i)));
        }
    }
    // The larger of the lane's two products with head i.
    static __device__ float larger(const float (&s)[kProducts], int i) {
        return cuda::max_nan(s[i / 2 * 4 + i % 2], s[i / 2 * 4 + i % 2 + 2]);
    }
    // Stores the weights; true if one of the lane's passed 2^15 or is NaN.
    template <cuda::Half Type>
    __device__ bool weigh(uint32_t turn, uint32_t at, const float (&s)[kProducts],
                          float (&added)[2 * kPairs]) const {
        const uint32_t heads = own_ + offsetof(Own, heads) + 16 * (lane_ % 4);
        float w[kPairs][4], most = 0;
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
            const uint4 of = cuda::load_shared_4(heads + 64 * n);
            const float unit[2] = {__uint_as_float(of.x), __uint_as_float(of.y)},
                        peak[2] = {__uint_as_float(of.z), __uint_as_float(of.w)};
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                // the product is rounded first, so that the largest cancels the peak
                w[n][e] = cuda::exp2_fast(__fmul_rn(s[4 * n + e], unit[e % 2]) - peak[e % 2]);
                most = cuda::max_nan(most, w[n][e]);
            }
            added[2 * n] = w[n][0] + w[n][2], added[2 * n + 1] = w[n][1] + w[n][3];
        }
        if (Shape::scaled && Type == cuda::Half::f16) {
            const uint32_t scales = first_scales(at);
#pragma unroll
            for (uint32_t g = 0; g < 4; ++g)
                store_weights<Type>(g, w, cuda::load_shared_f32(scales + 4 * g),
                                    cuda::load_shared_f32(scales + 8 * kPitch + 4 * g));
        } else {
            store_weights<Type>(Shape::scaled ? 0 : turn & 1, w, 1, 1);
        }
        cuda::fence_async_proxy();
        return !(most <= 0x1p15f);
    }
    // Times the scales of the lane's two keys.
    template <cuda::Half Type>
    __device__ void store_weights(uint32_t place, const float (&w)[kPairs][4], float first,
                                  float second) const {
        uint32_t p[2 * kPairs];
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
            p[2 * n] = cuda::pack_half<Type>(w[n][0] * first, w[n][1] * first);
            p[2 * n + 1] = cuda::pack_half<Type>(w[n][2] * second, w[n][3] * second);
        }
        const uint32_t to = own_ + offsetof(Own, weights) + place * Shape::query_tile;
#pragma unroll
        for (uint32_t n = 0; n < kPairs; n += 2)
            cuda::stmatrix_x4_trans(
                to + chunk_at(8 * n + lane_ / 16 * 8 + lane_ % 8, 2 * warp_ + lane_ / 8 % 2), p + 2 * n);
    }
    // Peaks from the scores of a tile, of the heads that need it; accumulators and sums follow.
    __device__ void raise_peaks(const float (&s)[kProducts]) {
        const uint32_t own = 8 * (lane_ % 4), mine = own_ + offsetof(Own, most) + own,
                       heads = own_ + offsetof(Own, heads) + 2 * own;
        float peak[2 * kPairs];
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i) {
            peak[i] = larger(s, i);
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                peak[i] = cuda::max_nan(peak[i], __shfl_xor_sync(~0u, peak[i], step));
            if (lane_ < 4)
                cuda::store_shared(mine + warp_ * (4 * Shape::heads) + 32 * (i / 2) + 4 * (i % 2), peak[i]);
        }
        cuda::named_barrier<kWarpgroup>(barrier_);
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i) {
#pragma unroll
            for (uint32_t w = 0; w < 4; ++w)
                peak[i] = cuda::max_nan(peak[i], cuda::load_shared_f32(mine + w * (4 * Shape::heads) +
                                                                       32 * (i / 2) + 4 * (i % 2)));
            const uint32_t of = heads + 64 * (i / 2) + 4 * (i % 2);
            const float old = cuda::load_shared_f32(of + 8), most = peak[i] * cuda::load_shared_f32(of);
            peak[i] = most <= old + (8 + kPeakWeightLog2) ? old : most - kPeakWeightLog2;  // NaN: NaN
            if (peak[i] != old) rescale(i, cuda::exp2_fast(old - peak[i]));
        }
        cuda::named_barrier<kWarpgroup>(barrier_);
        if (threadIdx.x % kWarpgroup < 4)
#pragma unroll
            for (int i = 0; i < 2 * kPairs; ++i)
                cuda::store_shared(heads + 64 * (i / 2) + 4 * (i % 2) + 8, peak[i]);
        cuda::named_barrier<kWarpgroup>(barrier_);
    }
    __device__ void rescale(int i, float factor) {
        sum[i] *= factor;
#pragma unroll
        for (auto& of_columns : o)
            of_columns[i / 2 * 4 + i % 2] *= factor, of_columns[i / 2 * 4 + i % 2 + 2] *= factor;
    }

    // O += V^T P. ldmatrix.trans gives a lane the codes of columns 2 g, 2 g + 1 of keys 2 t, 2 t + 1.
    __device__ void add_values(uint32_t turn, uint32_t at, uint32_t stage) {
        const uint64_t weights = weights_of(turn);
        uint32_t codes[2][4], a[2][16];
        this->load_values(at, 0, codes);
#pragma unroll
        for (uint32_t m = 0; m < 8; ++m) {
            const uint64_t of_columns =
                cuda::advanced(weights, Shape::scaled ? m / 2 * Shape::query_tile : 0);
            uint32_t(&own)[16] = a[m % 2];
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                this->convert(codes[k / 2][k % 2 * 2], own[4 * k], own[4 * k + 1]);
                this->convert(codes[k / 2][k % 2 * 2 + 1], own[4 * k + 2], own[4 * k + 3]);
            }
            if (m < 7) this->load_values(at, m + 1, codes);
            cuda::wgmma_fence();
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k)
                cuda::wgmma_few<cuda::Half::f16>(o[m], own + 4 * k, cuda::advanced(of_columns, 32 * k), true);
            cuda::wgmma_commit();
            if (m < 7) cuda::wgmma_wait<1>();
        }
        this->release(stage);  // not before the products: an arrival does not wait for loads
        cuda::wgmma_wait<0>();
    }
    // If scaled: those of the first 128 columns.
    __device__ uint64_t weights_of(uint32_t turn) const {
        return cuda::k_major(own_ + offsetof(Own, weights) +
                             (Shape::scaled ? 0 : (turn & 1) * Shape::query_tile));
    }
    // The same for a tile with scales out of range: code * scale as the sum of two bf16. Rare
    // and slow, and yet unrolled: with a loop here calls took 10 to 40 % longer, which is not explained.
    __device__ void add_out_of_range_values(uint32_t turn, uint32_t at, uint32_t stage) {
        const uint64_t weights = weights_of(turn);
#pragma unroll
        for (uint32_t m = 0; m < 8; ++m)
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                uint32_t high[4], low[4];
                this->load_out_of_range_values(at, m, k, high, low);
                cuda::wgmma_fence();
                for (const uint32_t* part : {high, low})
                    cuda::wgmma_few<cuda::Half::bf16>(o[m], part, cuda::advanced(weights, 32 * k), true);
                cuda::wgmma_commit();
                cuda::wgmma_wait<0>();
            }
        this->release(stage);
    }
};

}  // namespace smla::cuda_attend::sm90::few
