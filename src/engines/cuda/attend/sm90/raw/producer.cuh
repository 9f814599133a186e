// Producer of attend on Hopper over raw records: a warp copies a quarter of each tile, a lane one record.
#pragma once

#include "engines/cuda/attend/sm90/raw/config.h"
#include "engines/cuda/common/ptx/bulk.cuh"

namespace smla::cuda_attend::sm90::raw {

template <class Shape>
class Producer {
    using Shared = Smem<Shape>;
    static constexpr uint32_t kStages = Shape::stages;

public:
    __device__ Producer(const Arguments& args, const KeySource& keys, uint32_t base, int token,
                        TileRange tiles)
        : source_(args.sources[0]), keys_(keys), base_(base), warp_((threadIdx.x - Shape::consumers) / 32) {
        const int entry = tiles.first * kKeys + int(kEach * warp_ + lane());
        left_ = lane() < kEach ? int(source_.length(token)) - entry : 0;
        at_ = static_cast<const int*>(source_.rows.data) + cuda::element(source_.rows, token, entry);
        tiles_ = tiles.count();
        row_ = next();
    }

    __device__ void run() {
#pragma unroll 1
        for (int tile = 0; tile < tiles_; ++tile) {
            const uint32_t stage = uint32_t(tile) % kStages,
                           full = base_ + offsetof(Shared, full) + 8 * (uint32_t(tile) % Shape::fulls);
            const uint32_t place = record_place(source_, keys_, row_);
            if (tile + 1 < tiles_) row_ = next();
            const uint32_t valid = __ballot_sync(~0u, place != kHole);  // false for lanes without a record
            cuda::mbarrier_wait(base_ + offsetof(Shared, empty) + 8 * stage,
                                (uint32_t(tile) / kStages & 1) ^ 1);
            const uint32_t to = base_ + offsetof(Shared, records) +
                                (stage * kKeys + kEach * warp_ + lane()) * uint32_t(Shape::pitch);
            if (lane() < kEach && place == kHole) clear(to);
            __syncwarp();
            if (lane() == 0) {
                cuda::store_shared(base_ + offsetof(Shared, valid) + 8 * stage + 2 * warp_, uint16_t(valid));
                cuda::mbarrier_arrive_expect(full, __popc(valid) * Shape::record);
            }
            __syncwarp();
            if (place != kHole) cuda::copy_bulk(to, keys_.data + (uint64_t(place) << 4), Shape::record, full);
        }
    }

private:
    static constexpr uint32_t kEach = kKeys / kProducerWarps;
    static __device__ uint32_t lane() { return threadIdx.x % 32; }

    // Starts to load the row number of the next tile and returns it; -1 after the end of the list.
    __device__ int next() {
        const int row = left_ > 0 ? __ldg(at_) : -1;
        at_ += kKeys * source_.rows.stride_elems[1];
        left_ -= kKeys;
        return row;
    }
    // Clears the record of a masked entry (-1): NaN of an earlier key times a weight of 0 would be NaN.
    static __device__ void clear(uint32_t to) {
#pragma unroll 1
        for (uint32_t at = 0; at < uint32_t(Shape::record); at += 16)
            cuda::store_shared(to + at, make_uint4(0, 0, 0, 0));
        cuda::fence_async_proxy();  // orders the zeros before a later bulk copy to the same address
    }

    const Source& source_;
    const KeySource& keys_;
    const uint32_t base_, warp_;
    const int* at_;
    int left_, tiles_, row_;
};

}  // namespace smla::cuda_attend::sm90::raw
