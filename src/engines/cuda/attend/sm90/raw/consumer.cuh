// Consumer of attend on Hopper over raw records: the part that both kinds of multiplication share.
#pragma once

#include "engines/cuda/attend/sm90/raw/config.h"
#include "engines/cuda/common/ptx/math.cuh"
#include "engines/cuda/common/ptx/mma.cuh"

namespace smla::cuda_attend::sm90::raw {

// A key tile of a consumer warpgroup.
struct Tile {
    uint32_t turn;   // number of the tile among the tiles of the warpgroup
    uint32_t stage;  // stage that contains its records
    uint32_t at;     // byte offset of this stage from the first stage
};

// Warp w processes keys 16 w to 16 w + 15 of a tile for scores, and columns 16 w to 16 w + 15 of each 64 for
// values. Lane maps the accumulators of a lane to heads, keys and columns (see mma_consumer.cuh and
// wgmma_consumer.cuh). Self is the derived class, which multiplies.
template <class Shape, class Lane, class Self>
class Consumer {
public:
    using Lanes = Lane;
    static constexpr int kProducts = Shape::heads / 2;  // products per lane and 64 keys or columns

    float o[8][kProducts];   // sums of weights times values, of columns from 64 m on
    float sum[Lane::heads];  // sums of the weights of the lane's keys; -0.f: no key seen

    __device__ uint32_t group_smem() const { return group_smem_; }
    // Returns the shared memory of the first of two warpgroups with alternate tiles, for data of both.
    __device__ uint32_t first_group_smem() const {
        return Shape::tile_groups == 1 ? group_smem_ : group_at<Shape>(base_, 0);
    }
    __device__ uint32_t group() const { return group_; }
    __device__ int barrier() const { return barrier_; }
    __device__ uint32_t warp() const { return warp_; }
    __device__ int first_head() const { return Lane::first_head(int(lane_)); }
    // Returns the lane's first column of each 64.
    __device__ int column() const { return 16 * int(warp_) + Lane::first_column(int(lane_)); }
    // Returns whether this lane writes the values of a head for all lanes with this head.
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

    // group: number of the consumer warpgroup in the block
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

    // Loads batch b of 32 columns of the warp's keys.
    __device__ void load_codes(uint32_t at, uint32_t b, uint32_t (&codes)[4]) const {
        cuda::ldmatrix_x4(codes, row_ + at + 32 * b);
    }
    // Loads 16 columns of rope from column 512 + 32 b + 16 k on, which are operands without conversion.
    __device__ void load_rope(uint32_t at, uint32_t b, uint32_t k, uint32_t (&words)[4]) const {
        cuda::ldmatrix_x4(words, row_ + at + uint32_t(Shape::rope_at) + 64 * b + 32 * k);
    }
    // Loads 16 columns, which begin at column 64 m + 16 w, transposed, so that a lane receives columns 2 g
    // and 2 g + 1 of keys 2 t and 2 t + 1, where g is lane / 4 and t is lane % 4.
    __device__ void load_values(uint32_t at, uint32_t m, uint32_t (&codes)[2][4]) const {
        cuda::ldmatrix_x4_trans(codes[0], columns_ + at + 64 * m);
        cuda::ldmatrix_x4_trans(codes[1], columns_ + at + 64 * m + 32 * kPitch);
    }
    // Converts codes of two keys and two columns to operands of the even and the odd column.
    static __device__ void convert(uint32_t codes, uint32_t& even, uint32_t& odd) {
        cuda::e4m3_to_f16(__byte_perm(codes, 0, 0x3120), even, odd);
    }
    // Returns the address of the scales of a key of the tile.
    __device__ uint32_t scales_of(uint32_t at, uint32_t key) const {
        return base_ + offsetof(Shared, records) + at + key * kPitch + uint32_t(Shape::scales_at);
    }
    // Returns the address of the weights of columns 128 g to 128 g + 127 or, without scales, of a tile.
    __device__ uint32_t weights(uint32_t place) const {
        return group_smem_ + uint32_t(offsetof(Group, weights)) + place * Shape::query_tile;
    }
    // Returns the address of the unit of the lane's head j. The offsets may be added because the first head
    // or the step is even.
    __device__ uint32_t unit_at(int j) const {
        return raw::unit_at<Shape>(group_smem_, uint32_t(first_head())) +
               offset_of_head(uint32_t(Lane::head_step(j)));
    }
    // Writes the peaks, which the epilogue also reads.
    __device__ void publish_peaks(const float (&peak)[Lane::heads]) const {
        if (warp_ == 0 && is_first_lane_of_heads())
#pragma unroll
            for (int j = 0; j < Lane::heads; ++j) cuda::store_shared(unit_at(j) + kPeakAfterUnit, peak[j]);
    }
    // Releases a stage after this warp's last read.
    __device__ void release(uint32_t stage) const {
        __syncwarp();
        if (lane_ == 0) cuda::mbarrier_arrive(base_ + offsetof(Shared, empty) + 8 * stage);
    }

    const uint32_t base_, group_smem_, queries_;
    const uint32_t group_;  // number among the warpgroups with alternate tiles
    const int barrier_;
    const uint32_t lane_, warp_;
    const uint32_t row_, columns_;  // addresses of the lane's ldmatrix rows in the first stage

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
    // Checks whether scales are in range: a lane checks keys 16 w + lane / 4 and 16 w + lane / 4 + 8.
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
    // Returns whether a scale of the tile is out of range.
    __device__ bool is_out_of_range(uint32_t turn) const {
        return Shape::scaled && cuda::load_shared(group_smem_ + offsetof(Group, out_of_range_tile) +
                                                  4 * (turn & 1)) == turn + 1;
    }
    // Sets the logits of masked entries to -inf.
    __device__ void mask(const uint2& valid, float (&s)[kProducts]) const {
        if ((valid.x & valid.y) == ~0u) return;
        const uint32_t bits =
            (warp_ < 2 ? valid.x : valid.y) >> (16 * (warp_ % 2) + uint32_t(Lane::first_key(int(lane_))));
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
            if (!(bits >> Lane::key_step(i) & 1)) s[i] = -INFINITY;
    }

    // Publishes the tile's weights. Weights of a tile that is out of range are bf16, without scales.
    __device__ void weigh_tile(const Tile& tile, const float (&s)[kProducts], bool any) {
        float added[Lane::heads];
        if (Shape::scaled) {
            note_scales(tile);
            cuda::named_barrier<kWarpgroup>(barrier_);  // the previous tile's weights have been read
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
    // Raises the peaks of the heads that need it after a tile, and rescales accumulators and sums.
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
            peak[j] = wanted <= old + (8 + kPeakWeightLog2) ? old : wanted - kPeakWeightLog2;  // NaN for NaN
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

    // Adds values of a tile with scales out of range: code * scale is the sum of two bf16 numbers, high and
    // low. The loop is unrolled although it is rare and slow, because without unrolling calls took 10 to 40 %
    // longer, for an unknown reason.
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
    // Loads 16 columns from column 64 m + 16 w on, and 16 keys from key 16 k on: the even and the odd column
    // of keys 2 t and 2 t + 1, then of the keys 8 further.
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
    // Splits two columns of two keys. scale: address of the first key's scale, a record before the second's.
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

    float largest_[Shape::largest_in_shared ? 1 : Lane::heads];  // largest products, unless they are in
                                                                 // shared memory
};

}  // namespace smla::cuda_attend::sm90::raw
