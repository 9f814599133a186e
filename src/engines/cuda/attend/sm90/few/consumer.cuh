// What the consumers of attend on Hopper with few heads have in common: where a warpgroup finds its operands.
#pragma once

#include "engines/cuda/attend/sm90/few/config.h"
#include "engines/cuda/common/ptx/math.cuh"
#include "engines/cuda/common/ptx/mma.cuh"

namespace smla::cuda_attend::sm90::few {

// Warp w has keys 16 w and on of a tile for scores, and columns 16 w and on of each 64 for values.
template <class Shape>
class Consumer {
protected:
    using Shared = Smem<Shape>;
    using Own = GroupSmem<Shape>;
    static constexpr uint32_t kPitch = Shape::pitch, kStages = Shape::stages;

    // group: which of the block's consumer warpgroups
    __device__ Consumer(uint32_t base, uint32_t group)
        : base_(base),
          own_(group_at<Shape>(base, group)),
          queries_(queries_at<Shape>(base, group)),
          group_(Shape::tile_groups == 1 ? 0 : group),
          barrier_(kConsumerBarrier + (Shape::groups == 1 ? 0 : 3 * int(group))),
          lane_(threadIdx.x % 32),
          warp_(__shfl_sync(~0u, threadIdx.x / 32 % 4, 0)),
          row_(cuda::keep(base + offsetof(Shared, records) + (16 * warp_ + lane_ % 16) * kPitch +
                          lane_ / 16 * 16)),
          columns_(cuda::keep(base + offsetof(Shared, records) + lane_ * kPitch + 16 * warp_)) {}

public:
    __device__ uint32_t own() const { return own_; }
    // Of the first warpgroup, if two take tiles in turn: what is for both lies there.
    __device__ uint32_t shared_own() const {
        return Shape::tile_groups == 1 ? own_ : group_at<Shape>(base_, 0);
    }
    __device__ uint32_t group() const { return group_; }
    __device__ int barrier() const { return barrier_; }
    __device__ uint32_t lane() const { return lane_; }
    __device__ uint32_t warp() const { return warp_; }

protected:
    __device__ void wait_for_records(uint32_t tile) const {
        cuda::mbarrier_wait(base_ + offsetof(Shared, full) + 8 * (tile % Shape::fulls),
                            tile / Shape::fulls & 1);
    }
    __device__ uint2 valid(uint32_t stage) const {
        return cuda::load_shared_2(base_ + offsetof(Shared, valid) + 8 * stage);
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
    // Of a key of the tile.
    __device__ uint32_t scales_of(uint32_t at, uint32_t key) const {
        return base_ + offsetof(Shared, records) + at + key * kPitch + uint32_t(Shape::scales_at);
    }
    // Looks for scales of the warp's keys that are out of range; lane t of four at those of columns 128 t and
    // on. `scales`: of key 16 w + lane / 4.
    __device__ void note_scales(uint32_t turn, uint32_t scales) const {
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
            const float scale = cuda::load_shared_f32(scales + 8 * r * kPitch + 4 * (lane_ % 4));
            if (!((scale >= kLeastScale && scale <= kMostScale) || scale == 0))
                cuda::store_shared(own_ + offsetof(Own, out_of_range_tile) + 4 * (turn & 1), turn + 1);
        }
    }
    // A scale of the tile is out of range.
    __device__ bool is_out_of_range(uint32_t turn) const {
        return Shape::scaled &&
               cuda::load_shared(own_ + offsetof(Own, out_of_range_tile) + 4 * (turn & 1)) == turn + 1;
    }
    // Values of columns 64 m + 16 w and on, and of keys 16 k and on, times their scales as the sum of two
    // bf16: of the even and the odd column of keys 2 t and 2 t + 1, then of the keys 8 further.
    __device__ void load_out_of_range_values(uint32_t at, uint32_t m, uint32_t k, uint32_t (&high)[4],
                                             uint32_t (&low)[4]) const {
        uint32_t codes[4];
        cuda::ldmatrix_x4_trans(codes, columns_ + at + 64 * m + k / 2 * (32 * kPitch));
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h)
            split_pair(k % 2 ? codes[2 + h] : codes[h], at + (16 * k + 8 * h + 2 * (lane_ % 4)) * kPitch,
                       m / 2, high + 2 * h, low + 2 * h);
    }
    // A warp has read a tile for the last time.
    __device__ void release(uint32_t stage) const {
        __syncwarp();
        if (lane_ == 0) cuda::mbarrier_arrive(base_ + offsetof(Shared, empty) + 8 * stage);
    }

    const uint32_t base_, own_, queries_;
    const uint32_t group_;  // of those that take tiles in turn
    const int barrier_;
    const uint32_t lane_, warp_;
    const uint32_t row_, columns_;  // what the lane's ldmatrix reads in the first stage

private:
    // Two columns of the two keys whose first record lies at `key`.
    __device__ void split_pair(uint32_t codes, uint32_t key, uint32_t group, uint32_t* high,
                               uint32_t* low) const {
        const uint32_t scales =
            base_ + offsetof(Shared, records) + key + uint32_t(Shape::scales_at) + 4 * group;
        const float first = cuda::load_shared_f32(scales), second = cuda::load_shared_f32(scales + kPitch);
        uint32_t pairs[2];
        cuda::e4m3_to_f16(__byte_perm(codes, 0, 0x3120), pairs[0], pairs[1]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float a = cuda::f16_low(pairs[i]) * first, b = cuda::f16_high(pairs[i]) * second;
            high[i] = cuda::pack_bf16(a, b);
            low[i] = cuda::pack_bf16(a - __uint_as_float(high[i] << 16),
                                     b - __uint_as_float(high[i] & 0xffff0000u));
        }
    }
};

}  // namespace smla::cuda_attend::sm90::few
