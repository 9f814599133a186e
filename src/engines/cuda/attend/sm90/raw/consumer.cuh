// Consumer of attend on Hopper with few heads: what is the same whoever multiplies.
#pragma once

#include "engines/cuda/attend/sm90/raw/config.h"
#include "engines/cuda/common/ptx/math.cuh"
#include "engines/cuda/common/ptx/mma.cuh"

namespace smla::cuda_attend::sm90::raw {

// A key tile of a consumer warpgroup.
struct Tile {
    uint32_t turn;   // its number among the tiles of the warpgroup
    uint32_t stage;  // stage that contains its records
    uint32_t at;     // byte offset of this stage from the first stage
};

// Warp w has keys 16 w and on of a tile for scores, and columns 16 w and on of each 64 for values.
// Lane maps the accumulators of a lane to heads, keys and columns (mma_consumer.cuh and wgmma_consumer.cuh
// have one each). Self is the derived class, which multiplies.
template <class Shape, class Lane, class Self>
class Consumer {
public:
    using Lanes = Lane;
    static constexpr int kProducts = Shape::heads / 2;  // of a lane, per 64 keys or columns

    float o[8][kProducts];   // sums of weights times values, of columns 64 m and on
    float sum[Lane::heads];  // of the weights of the lane's keys; -0.f: no key seen

    __device__ uint32_t group_smem() const { return group_smem_; }
    // Shared memory of the first warpgroup if two take tiles in turn: it holds what both need.
    __device__ uint32_t first_group_smem() const {
        return Shape::tile_groups == 1 ? group_smem_ : group_at<Shape>(base_, 0);
    }
    __device__ uint32_t group() const { return group_; }
    __device__ int barrier() const { return barrier_; }
    __device__ uint32_t warp() const { return warp_; }
    __device__ int first_head() const { return Lane::first_head(int(lane_)); }
    // The lane's first column of each 64.
    __device__ int column() const { return 16 * int(warp_) + Lane::first_column(int(lane_)); }
    // Whether this lane writes the values of a head for all lanes that have the head.
    __device__ bool is_first_lane_of_heads() const {
        return (lane_ & (2 * Lane::last_step - Lane::first_step)) == 0;
    }
    __device__ float largest_of(int j) const {
        return Shape::largest_in_shared ? cuda::load_shared_f32(largest_at(j)) : largest_[j];
    }

    __device__ void attend(int tiles) {
#pragma unroll 1
        for (uint32_t number = group_, turn = 0; int(number) < tiles; number += Shape::tile_groups, ++turn) {
            const uint32_t stage = number % kStages;
            const Tile tile = {turn, stage, stage * kKeys * kPitch};
            wait_for_records(number);
            float s[kProducts];
            self().score(tile, s);
            const uint2 valid = cuda::load_shared_2(base_ + offsetof(Shared, valid) + 8 * stage);
            mask(valid, s);
            weigh_tile(tile, s, (valid.x | valid.y) != 0);
            if (is_out_of_range(turn)) add_out_of_range_values(tile);
            else self().add_values(tile);
        }
    }

protected:
    using Shared = Smem<Shape>;
    using Group = GroupSmem<Shape>;
    static constexpr uint32_t kPitch = Shape::pitch, kStages = Shape::stages;

    // group: which of the block's consumer warpgroups
    __device__ Consumer(uint32_t base, uint32_t group)
        : base_(base),
          group_smem_(group_at<Shape>(base, group)),
          queries_(queries_at<Shape>(base, group)),
          group_(Shape::tile_groups == 1 ? 0 : group),
          barrier_(kConsumerBarrier + (Shape::groups == 1 ? 0 : 3 * int(group))),
          lane_(threadIdx.x % 32),
          warp_(__shfl_sync(~0u, threadIdx.x / 32 % 4, 0)),
          row_(cuda::keep(base + offsetof(Shared, records) + (16 * warp_ + lane_ % 16) * kPitch +
                          lane_ / 16 * 16)),
          columns_(cuda::keep(base + offsetof(Shared, records) + lane_ * kPitch + 16 * warp_)) {
#pragma unroll
        for (auto& of_columns : o)
#pragma unroll
            for (float& value : of_columns) value = 0;
#pragma unroll
        for (int j = 0; j < Lane::heads; ++j) sum[j] = -0.f, set_largest(j, -INFINITY);
    }

    // Batch b of 32 columns of the warp's keys.
    __device__ void load_codes(uint32_t at, uint32_t b, uint32_t (&codes)[4]) const {
        cuda::ldmatrix_x4(codes, row_ + at + 32 * b);
    }
    // Columns 512 + 32 b + 16 k and on; as operands they lie as they are.
    __device__ void load_rope(uint32_t at, uint32_t b, uint32_t k, uint32_t (&words)[4]) const {
        cuda::ldmatrix_x4(words, row_ + at + uint32_t(Shape::rope_at) + 64 * b + 32 * k);
    }
    // Columns 64 m + 16 w and on: transposed, so that a lane gets columns 2 g and 2 g + 1 of keys 2 t and
    // 2 t + 1, where g is lane / 4 and t lane % 4.
    __device__ void load_values(uint32_t at, uint32_t m, uint32_t (&codes)[2][4]) const {
        cuda::ldmatrix_x4_trans(codes[0], columns_ + at + 64 * m);
        cuda::ldmatrix_x4_trans(codes[1], columns_ + at + 64 * m + 32 * kPitch);
    }
    // Codes of two keys and two columns: of the even column, and of the odd one.
    static __device__ void convert(uint32_t codes, uint32_t& even, uint32_t& odd) {
        cuda::e4m3_to_f16(__byte_perm(codes, 0, 0x3120), even, odd);
    }
    // Returns the address of the scales of a key of the tile.
    __device__ uint32_t scales_of(uint32_t at, uint32_t key) const {
        return base_ + offsetof(Shared, records) + at + key * kPitch + uint32_t(Shape::scales_at);
    }
    // Weights of columns 128 g and on, or of a tile whose weights have no scales.
    __device__ uint32_t weights(uint32_t place) const {
        return group_smem_ + uint32_t(offsetof(Group, weights)) + place * Shape::query_tile;
    }
    // Returns the address of the unit of the lane's head j. Its first head or the step is even: places add.
    __device__ uint32_t unit_at(int j) const {
        return raw::unit_at<Shape>(group_smem_, uint32_t(first_head())) +
               offset_of_head(uint32_t(Lane::head_step(j)));
    }
    // For the epilogue, too.
    __device__ void publish_peaks(const float (&peak)[Lane::heads]) const {
        if (warp_ == 0 && is_first_lane_of_heads())
#pragma unroll
            for (int j = 0; j < Lane::heads; ++j) cuda::store_shared(unit_at(j) + kPeakAfterUnit, peak[j]);
    }
    // A warp has read a tile for the last time.
    __device__ void release(uint32_t stage) const {
        __syncwarp();
        if (lane_ == 0) cuda::mbarrier_arrive(base_ + offsetof(Shared, empty) + 8 * stage);
    }

    const uint32_t base_, group_smem_, queries_;
    const uint32_t group_;  // of those that take tiles in turn
    const int barrier_;
    const uint32_t lane_, warp_;
    const uint32_t row_, columns_;  // what the lane's ldmatrix reads in the first stage

private:
    __device__ Self& self() { return *static_cast<Self*>(this); }
    __device__ uint32_t largest_at(int j) const {
        return base_ + uint32_t(offsetof(Shared, largest)) +
               4 * (uint32_t(j) * Shape::consumers + threadIdx.x);
    }
    __device__ void set_largest(int j, float value) {
        if constexpr (Shape::largest_in_shared) cuda::store_shared(largest_at(j), value);
        else largest_[j] = value;
    }
    // Returns the largest of the lane's products with head j.
    static __device__ float largest_in(const float (&s)[kProducts], int j) {
        float largest = s[Lane::product(j, 0)];
#pragma unroll
        for (int c = 1; c < Lane::run; ++c) largest = cuda::max_nan(largest, s[Lane::product(j, c)]);
        return largest;
    }

    __device__ void wait_for_records(uint32_t tile) const {
        cuda::mbarrier_wait(base_ + offsetof(Shared, full) + 8 * (tile % Shape::fulls),
                            tile / Shape::fulls & 1);
    }
    // Looks for scales of the warp's keys that are out of range: a lane at one of keys 16 w + lane / 4 and
    // 8 further each.
    __device__ void note_scales(const Tile& tile) const {
        const uint32_t scales = scales_of(tile.at, 16 * warp_ + lane_ / 4) + 4 * (lane_ % 4);
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
            const float scale = cuda::load_shared_f32(scales + 8 * r * kPitch);
            if (!((scale >= kLeastScale && scale <= kMostScale) || scale == 0))
                cuda::store_shared(group_smem_ + offsetof(Group, out_of_range_tile) + 4 * (tile.turn & 1),
                                   tile.turn + 1);
        }
    }
    // A scale of the tile is out of range.
    __device__ bool is_out_of_range(uint32_t turn) const {
        return Shape::scaled && cuda::load_shared(group_smem_ + offsetof(Group, out_of_range_tile) +
                                                  4 * (turn & 1)) == turn + 1;
    }
    // Holes weigh nothing.
    __device__ void mask(const uint2& valid, float (&s)[kProducts]) const {
        if ((valid.x & valid.y) == ~0u) return;
        const uint32_t bits =
            (warp_ < 2 ? valid.x : valid.y) >> (16 * (warp_ % 2) + uint32_t(Lane::first_key(int(lane_))));
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
            if (!(bits >> Lane::key_step(i) & 1)) s[i] = -INFINITY;
    }

    // Publishes the tile's weights; those of a tile out of range are bf16, without scales.
    __device__ void weigh_tile(const Tile& tile, const float (&s)[kProducts], bool any) {
        float added[Lane::heads];
        if (Shape::scaled) {
            note_scales(tile);
            cuda::named_barrier<kWarpgroup>(barrier_);  // all have read the weights of the tile before
        }
        if (cuda::named_barrier_or<kWarpgroup>(barrier_,
                                               self().template weigh<cuda::Half::f16>(tile, s, added))) {
            raise_peaks(s);
            self().template weigh<cuda::Half::f16>(tile, s, added);
            cuda::named_barrier<kWarpgroup>(barrier_);
        }
        if (is_out_of_range(tile.turn)) {
            cuda::named_barrier<kWarpgroup>(barrier_);
            self().template weigh<cuda::Half::bf16>(tile, s, added);
            cuda::named_barrier<kWarpgroup>(barrier_);
        }
#pragma unroll
        for (int j = 0; j < Lane::heads; ++j) {
            if (any) sum[j] += added[j];
            set_largest(j, cuda::max_nan(largest_of(j), largest_in(s, j)));
        }
    }
    // Peaks from the scores of a tile, of the heads that need it; accumulators and sums follow.
    __device__ void raise_peaks(const float (&s)[kProducts]) {
        const uint32_t most = group_smem_ + uint32_t(offsetof(Group, most)) + 4 * uint32_t(first_head());
        float peak[Lane::heads];
#pragma unroll
        for (int j = 0; j < Lane::heads; ++j) {
            peak[j] = largest_in(s, j);
#pragma unroll
            for (int step = Lane::first_step; step <= Lane::last_step; step *= 2)
                peak[j] = cuda::max_nan(peak[j], __shfl_xor_sync(~0u, peak[j], step));
            if (is_first_lane_of_heads())
                cuda::store_shared(most + warp_ * (4 * Shape::heads) + 4 * Lane::head_step(j), peak[j]);
        }
        cuda::named_barrier<kWarpgroup>(barrier_);
#pragma unroll
        for (int j = 0; j < Lane::heads; ++j) {
#pragma unroll
            for (uint32_t w = 0; w < 4; ++w)
                peak[j] = cuda::max_nan(
                    peak[j], cuda::load_shared_f32(most + w * (4 * Shape::heads) + 4 * Lane::head_step(j)));
            const float old = self().peak_of(j), wanted = peak[j] * self().unit_of(j);
            peak[j] = wanted <= old + (8 + kPeakWeightLog2) ? old : wanted - kPeakWeightLog2;  // NaN: NaN
            if (peak[j] != old) rescale(j, cuda::exp2_fast(old - peak[j]));
        }
        self().set_peaks(peak);
    }
    __device__ void rescale(int j, float factor) {
        sum[j] *= factor;
#pragma unroll
        for (auto& of_columns : o)
#pragma unroll
            for (int c = 0; c < Lane::run; ++c) of_columns[Lane::product(j, c)] *= factor;
    }

    // Adds values of a tile with scales out of range: code * scale as the sum of two bf16, high and low. Rare
    // and slow, yet unrolled: with a loop here, calls took 10 to 40 % longer, for an unknown reason.
    __device__ void add_out_of_range_values(const Tile& tile) {
#pragma unroll
        for (uint32_t m = 0; m < 8; ++m)
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                uint32_t high[4], low[4];
                load_out_of_range_values(tile.at, m, k, high, low);
                self().add_split_values(m, k, high, low);
            }
        release(tile.stage);
    }
    // Values of columns 64 m + 16 w and on, and of keys 16 k and on: of the even and the odd column of keys
    // 2 t and 2 t + 1, then of the keys 8 further.
    __device__ void load_out_of_range_values(uint32_t at, uint32_t m, uint32_t k, uint32_t (&high)[4],
                                             uint32_t (&low)[4]) const {
        uint32_t codes[4];
        cuda::ldmatrix_x4_trans(codes, columns_ + at + 64 * m + k / 2 * (32 * kPitch));
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h)
            split_pair(k % 2 ? codes[2 + h] : codes[h],
                       scales_of(at, 16 * k + 8 * h + 2 * (lane_ % 4)) + 4 * (m / 2), high + 2 * h,
                       low + 2 * h);
    }
    // Two columns of two keys; scale: of the first, that of the second is a record further.
    __device__ void split_pair(uint32_t codes, uint32_t scale, uint32_t* high, uint32_t* low) const {
        const float first = cuda::load_shared_f32(scale), second = cuda::load_shared_f32(scale + kPitch);
        uint32_t pairs[2];
        convert(codes, pairs[0], pairs[1]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float a = cuda::f16_low(pairs[i]) * first, b = cuda::f16_high(pairs[i]) * second;
            high[i] = cuda::pack_bf16(a, b);
            low[i] = cuda::pack_bf16(a - __uint_as_float(high[i] << 16),
                                     b - __uint_as_float(high[i] & 0xffff0000u));
        }
    }

    float largest_[Shape::largest_in_shared ? 1 : Lane::heads];  // product; or in shared memory
};

}  // namespace smla::cuda_attend::sm90::raw
