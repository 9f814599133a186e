// Consumer of 16 heads, which are the rows of mma.sync m16n8k16: scores, softmax and values.
#pragma once

#include "engines/cuda/attend/sm90/few/consumer.cuh"
#include "engines/cuda/common/ptx/wgmma.cuh"

namespace smla::cuda_attend::sm90::few {

// With g = lane / 4 and t = lane % 4, a lane's products belong to heads g and g + 8 (elements 0, 1 and 2, 3),
// and to keys 8 n + 2 t and + 1 of the warp's 16. Its values are of columns 4 t to 4 t + 3.
template <class Shape>
class MmaConsumer : public Consumer<Shape> {
    using Base = Consumer<Shape>;
    using Base::base_, Base::own_, Base::queries_, Base::lane_, Base::warp_, Base::kPitch, Base::kStages;
    using typename Base::Own;
    using typename Base::Shared;
    static_assert(Shape::heads == 16);
    static constexpr uint32_t kBatches = Shape::batches;        // of 32 columns
    static constexpr uint32_t kScales = Shape::scaled ? 4 : 1;  // of a key

public:
    static constexpr int kLaneHeads = 2, kProducts = 8;
    static constexpr int kRun = 4;                       // neighbouring columns that a lane has of a head
    static constexpr int kFirstStep = 1, kLastStep = 2;  // between lanes that have the same heads

    float o[8][kProducts];  // sums of weights times values, of columns 64 m and on: of even ones, of odd ones
    float sum[kLaneHeads];  // of the weights of the lane's keys; -0.f: no key seen

    __device__ MmaConsumer(uint32_t base, uint32_t group) : Base(base, group) {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) fragment_[k] = chunk_at(lane_ % 16, 2 * k + lane_ / 16);
#pragma unroll
        for (auto& of_columns : o)
#pragma unroll
            for (float& value : of_columns) value = 0;
#pragma unroll
        for (int j = 0; j < kLaneHeads; ++j) {
            sum[j] = -0.f, largest_[j] = -INFINITY, peak_[j] = kNoPeak;
            unit_[j] = cuda::load_shared_f32(head_at(j));
        }
    }

    // The lane's first head; the others are head_step(j) further.
    __device__ int first_head() const { return int(lane_ / 4); }
    static constexpr int head_step(int j) { return 8 * j; }
    // Which of the lane's heads a product belongs to.
    static constexpr int head_of(int product) { return product % 4 / 2; }
    // The lane's columns of each 64.
    __device__ int column() const { return 16 * int(warp_) + kRun * int(lane_ % 4); }
    // The value of head j in column c of those.
    static constexpr int value_of(int j, int c) { return c % 2 * 4 + 2 * j + c / 2; }
    __device__ float largest_of(int j) const { return largest_[j]; }
    // Of the lanes that have the same heads, one speaks for them: the number of its first head.
    __device__ bool speaks_for_heads() const { return lane_ % 4 == 0; }
    __device__ uint32_t spoken_head() const { return lane_ / 4; }

    // turn: of the warpgroup's own tiles.
    __device__ void attend(int tiles) {
#pragma unroll 1
        for (uint32_t tile = this->group_, turn = 0; int(tile) < tiles; tile += Shape::tile_groups, ++turn) {
            const uint32_t stage = tile % kStages, at = stage * kKeys * kPitch;
            this->wait_for_records(tile);
            float s[kProducts], scales[kScales][4];
            if (Shape::scaled) {
                this->note_scales(turn, this->scales_of(at, 16 * warp_ + lane_ / 4));
                load_scales(at, scales);
            }
            score(at, scales, s);
            const uint2 valid = this->valid(stage);
            mask(valid, s);
            weigh_tile(turn, scales, s, (valid.x | valid.y) != 0);
            if (this->is_out_of_range(turn)) add_out_of_range_values(at, stage);
            else add_values(turn, at, stage);
        }
        publish_peaks();
    }

private:
    // Of a head of the lane: unit, and 8 bytes further its peak.
    __device__ uint32_t head_at(int j) const {
        return own_ + uint32_t(offsetof(Own, heads)) + lane_ / 8 * 16 + lane_ / 4 % 2 * 4 +
               uint32_t(head_step(j)) * 8;
    }
    // scales[g][i]: of columns 128 g and on of the lane's key i, which is the warp's key
    // 8 (i / 2) + 2 t + i % 2.
    __device__ void load_scales(uint32_t at, float (&scales)[kScales][4]) const {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t from = this->scales_of(at, 16 * warp_ + 8 * (i / 2) + 2 * (lane_ % 4) + i % 2);
#pragma unroll
            for (uint32_t g = 0; g < kScales; ++g) scales[g][i] = cuda::load_shared_f32(from + 4 * g);
        }
    }
    // Rows of 16 columns of the queries, or of 16 keys of the weights, of a tile of 64.
    __device__ void load_rows(uint32_t tile, uint32_t k, uint32_t (&a)[4]) const {
        cuda::ldmatrix_x4(a, tile + fragment_[k]);
    }

    // s = the products of codes and queries: of a cache with one scale, their sum; else rope, plus the sum
    // over groups of 128 columns of scale * products. Two accumulators in turn, as each product waits for the
    // one before it on its own.
    __device__ void score(uint32_t at, const float (&scales)[kScales][4], float (&s)[kProducts]) const {
        uint32_t codes[2][4];
        this->load_codes(at, 0, codes[0]);
        this->load_codes(at, 1, codes[1]);
        float total[2][4] = {}, group[2][2][4] = {};
        add_rope(at, total);
#pragma unroll
        for (uint32_t b = 0; b < kBatches; ++b) {
#pragma unroll
            for (uint32_t k = 0; k < 2; ++k) {
                uint32_t q[4], keys[4];
                const uint32_t step = 2 * b + k;
                load_rows(queries_ + step / 4 * Shape::query_tile, step % 4, q);
                cuda::e4m3_to_f16(codes[b % 2][2 * k], keys[0], keys[1]);
                cuda::e4m3_to_f16(codes[b % 2][2 * k + 1], keys[2], keys[3]);
#pragma unroll
                for (uint32_t n = 0; n < 2; ++n) cuda::mma_f16(group[k][n], q, keys[2 * n], keys[2 * n + 1]);
            }
            if (b + 2 < kBatches) this->load_codes(at, b + 2, codes[b % 2]);
            if (Shape::scaled && b % 4 == 3) add_group(scales[b / 4 % kScales], group, total);
        }
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
            s[i] = Shape::scaled ? total[i / 4][i % 4] : group[0][i / 4][i % 4] + group[1][i / 4][i % 4];
    }

    __device__ void add_rope(uint32_t at, float (&total)[2][4]) const {
#pragma unroll
        for (uint32_t b = 0; b != uint32_t(Shape::rope_batches); ++b)
#pragma unroll
            for (uint32_t k = 0; k < 2; ++k) {
                uint32_t q[4], keys[4];
                load_rows(queries_ + 8 * Shape::query_tile, 2 * b + k, q);
                this->load_rope(at, b, k, keys);
#pragma unroll
                for (uint32_t n = 0; n < 2; ++n) cuda::mma_bf16(total[n], q, keys[n], keys[n + 2]);
            }
    }
    static __device__ void add_group(const float (&scales)[4], float (&group)[2][2][4],
                                     float (&total)[2][4]) {
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
            float &first = group[0][i / 4][i % 4], &second = group[1][i / 4][i % 4];
            total[i / 4][i % 4] += scales[i / 4 * 2 + i % 2] * (first + second);
            first = second = 0;
        }
    }
    __device__ void mask(const uint2& valid, float (&s)[kProducts]) const {
        if ((valid.x & valid.y) == ~0u) return;
        const uint32_t bits = (warp_ < 2 ? valid.x : valid.y) >> (16 * (warp_ % 2) + 2 * (lane_ % 4));
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
            if (!(bits >> (8 * (i / 4) + i % 2) & 1)) s[i] = -INFINITY;
    }

    // Publishes the tile's weights; those of a tile out of range are bf16, without scales.
    __device__ void weigh_tile(uint32_t turn, const float (&scales)[kScales][4], const float (&s)[kProducts],
                               bool any) {
        float added[kLaneHeads];
        if (Shape::scaled)  // all have read the weights of the tile before
            cuda::named_barrier<kWarpgroup>(this->barrier_);
        if (cuda::named_barrier_or<kWarpgroup>(this->barrier_,
                                               weigh<cuda::Half::f16>(turn, scales, s, added))) {
            raise_peaks(s);
            weigh<cuda::Half::f16>(turn, scales, s, added);
            cuda::named_barrier<kWarpgroup>(this->barrier_);
        }
        if (this->is_out_of_range(turn)) {
            cuda::named_barrier<kWarpgroup>(this->barrier_);
            weigh<cuda::Half::bf16>(turn, scales, s, added);
            cuda::named_barrier<kWarpgroup>(this->barrier_);
        }
#pragma unroll
        for (int j = 0; j < kLaneHeads; ++j) {
            if (any) sum[j] += added[j];
            largest_[j] = cuda::max_nan(largest_[j], larger(s, j));
        }
    }
    // Of the lane's four products with head j.
    static __device__ float larger(const float (&s)[kProducts], int j) {
        return cuda::max_nan(cuda::max_nan(s[2 * j], s[2 * j + 1]),
                             cuda::max_nan(s[2 * j + 4], s[2 * j + 5]));
    }
    // Stores the weights; true if one of the lane's passed 2^15 or is NaN.
    template <cuda::Half Type>
    __device__ bool weigh(uint32_t turn, const float (&scales)[kScales][4], const float (&s)[kProducts],
                          float (&added)[kLaneHeads]) const {
        float w[kProducts], most = 0;
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
            // the product is rounded first, so that the largest cancels the peak
            w[i] = cuda::exp2_fast(__fmul_rn(s[i], unit_[head_of(i)]) - peak_[head_of(i)]);
            most = cuda::max_nan(most, w[i]);
        }
#pragma unroll
        for (int j = 0; j < kLaneHeads; ++j)
            added[j] = (w[2 * j] + w[2 * j + 1]) + (w[2 * j + 4] + w[2 * j + 5]);
        if (Shape::scaled && Type == cuda::Half::f16) {
#pragma unroll
            for (uint32_t g = 0; g < kScales; ++g) {
                float scaled[kProducts];
#pragma unroll
                for (int i = 0; i < kProducts; ++i) scaled[i] = w[i] * scales[g][i / 4 * 2 + i % 2];
                store_weights<Type>(g, scaled);
            }
        } else {
            store_weights<Type>(Shape::scaled ? 0 : turn & 1, w);
        }
        return !(most <= 0x1p15f);
    }
    template <cuda::Half Type>
    __device__ void store_weights(uint32_t place, const float (&w)[kProducts]) const {
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = cuda::pack_half<Type>(w[2 * i], w[2 * i + 1]);
        cuda::stmatrix_x4(weights(place) + chunk_at(lane_ % 16, 2 * warp_ + lane_ / 16), p);
    }
    __device__ uint32_t weights(uint32_t place) const {
        return own_ + uint32_t(offsetof(Own, weights)) + place * Shape::query_tile;
    }
    // Peaks from the scores of a tile, of the heads that need it; accumulators and sums follow.
    __device__ void raise_peaks(const float (&s)[kProducts]) {
        const uint32_t most = own_ + uint32_t(offsetof(Own, most));
#pragma unroll
        for (int j = 0; j < kLaneHeads; ++j) {
            float of_warp = larger(s, j);
#pragma unroll
            for (int step = kFirstStep; step <= kLastStep; step *= 2)
                of_warp = cuda::max_nan(of_warp, __shfl_xor_sync(~0u, of_warp, step));
            if (speaks_for_heads())
                cuda::store_shared(
                    most + warp_ * (4 * Shape::heads) + 4 * uint32_t(first_head() + head_step(j)), of_warp);
        }
        cuda::named_barrier<kWarpgroup>(this->barrier_);
#pragma unroll
        for (int j = 0; j < kLaneHeads; ++j) {
            float largest = -INFINITY;
#pragma unroll
            for (uint32_t w = 0; w < 4; ++w)
                largest =
                    cuda::max_nan(largest, cuda::load_shared_f32(most + w * (4 * Shape::heads) +
                                                                 4 * uint32_t(first_head() + head_step(j))));
            const float old = peak_[j], wanted = largest * unit_[j];
            peak_[j] = wanted <= old + (8 + kPeakWeightLog2) ? old : wanted - kPeakWeightLog2;  // NaN: NaN
            if (peak_[j] != old) rescale(j, cuda::exp2_fast(old - peak_[j]));
        }
    }
    __device__ void rescale(int j, float factor) {
        sum[j] *= factor;
#pragma unroll
        for (auto& of_columns : o)
#pragma unroll
            for (int i = 0; i < 4; ++i) of_columns[i / 2 * 4 + 2 * j + i % 2] *= factor;
    }
    // For the epilogue.
    __device__ void publish_peaks() const {
        if (warp_ == 0 && speaks_for_heads())
#pragma unroll
            for (int j = 0; j < kLaneHeads; ++j) cuda::store_shared(head_at(j) + 8, peak_[j]);
    }

    // O += P V
    __device__ void add_values(uint32_t turn, uint32_t at, uint32_t stage) {
        uint32_t codes[2][4], p[4][4];
        this->load_values(at, 0, codes);
        if (!Shape::scaled) load_weights(turn & 1, p);
#pragma unroll
        for (uint32_t m = 0; m < 8; ++m) {
            if (Shape::scaled && m % 2 == 0) load_weights(m / 2, p);
            uint32_t even[8], odd[8];
#pragma unroll
            for (uint32_t i = 0; i < 8; ++i) this->convert(codes[i / 4][i % 4], even[i], odd[i]);
            if (m < 7) this->load_values(at, m + 1, codes);
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                cuda::mma_f16(o[m], p[k], even[2 * k], even[2 * k + 1]);
                cuda::mma_f16(o[m] + 4, p[k], odd[2 * k], odd[2 * k + 1]);
            }
        }
        this->release(stage);  // not before the products: an arrival does not wait for loads
    }
    __device__ void load_weights(uint32_t place, uint32_t (&p)[4][4]) const {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) load_rows(weights(place), k, p[k]);
    }

    // The same for a tile with scales out of range: code * scale as the sum of two bf16. Rare and slow.
    __device__ void add_out_of_range_values(uint32_t at, uint32_t stage) {
        uint32_t p[4][4];
        load_weights(0, p);
#pragma unroll
        for (uint32_t m = 0; m < 8; ++m)
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                uint32_t high[4], low[4];
                this->load_out_of_range_values(at, m, k, high, low);
#pragma unroll
                for (const uint32_t* part : {high, low}) {
                    cuda::mma_bf16(o[m], p[k], part[0], part[2]);
                    cuda::mma_bf16(o[m] + 4, p[k], part[1], part[3]);
                }
            }
        this->release(stage);
    }

    uint32_t fragment_[4];                       // where the lane's row of 16 columns lies in a tile of 64
    float unit_[kLaneHeads], peak_[kLaneHeads];  // log2 logits are products times units
    float largest_[kLaneHeads];                  // product
};

}  // namespace smla::cuda_attend::sm90::few
