// Producer of attend on Hopper with few heads: a warp copies half of each tile, a lane one record.
#pragma once

#include "engines/cuda/attend/sm90/few/config.h"
#include "engines/cuda/common/ptx/bulk.cuh"

namespace smla::cuda_attend::sm90::few {

template <class Shape>
class Producer {
    using Shared = Smem<Shape>;

public:
    __device__ Producer(const Arguments& args, const KeySource& keys, uint32_t base, int token,
                        TileRange tiles)
        : source_(args.sources[0]), keys_(keys), base_(base), half_((threadIdx.x - kConsumers) / 32) {
        const int entry = tiles.first * kKeys + int(32 * half_ + lane());
        left_ = int(source_.length(token)) - entry;
        at_ = static_cast<const int*>(source_.rows.data) + cuda::element(source_.rows, token, entry);
        tiles_ = tiles.count();
        row_ = next();
    }

    __device__ void run() {
#pragma unroll 1
        for (int tile = 0; tile < tiles_; ++tile) {
            const uint32_t stage = uint32_t(tile) % kStages,
                           full = base_ + offsetof(Shared, full) + 8 * stage;
            const uint32_t place = record_place(source_, keys_, row_);
            if (tile + 1 < tiles_) row_ = next();
            const uint32_t valid = __ballot_sync(~0u, place != kHole);
            cuda::mbarrier_wait(base_ + offsetof(Shared, empty) + 8 * stage,
                                (uint32_t(tile) / kStages & 1) ^ 1);
            const uint32_t to = base_ + offsetof(Shared, records) +
                                (stage * kKeys + 32 * half_ + lane()) * uint32_t(Shape::pitch);
            if (valid != ~0u && place == kHole) clear(to);
            __syncwarp();
            if (lane() == 0) {
                cuda::store_shared(base_ + offsetof(Shared, valid) + 8 * stage + 4 * half_, valid);
                cuda::mbarrier_arrive_expect(full, __popc(valid) * Shape::record);
            }
            __syncwarp();
            if (place != kHole) cuda::copy_bulk(to, keys_.data + (uint64_t(place) << 4), Shape::record, full);
        }
    }

private:
    static __device__ uint32_t lane() { return threadIdx.x % 32; }

    // Starts to load the row number of the next tile; -1 past the end of the list.
    __device__ int next() {
        const int row = left_ > 0 ? __ldg(at_) : -1;
        at_ += kKeys * source_.rows.stride_elems[1];
        left_ -= kKeys;
        return row;
    }
    // The record of a hole is zeros: NaN of an older key times a weight of 0 would be NaN.
    static __device__ void clear(uint32_t to) {
#pragma unroll 1
        for (uint32_t at = 0; at < uint32_t(Shape::record); at += 16)
            cuda::store_shared(to + at, make_uint4(0, 0, 0, 0));
        cuda::fence_async_proxy();  // before a later bulk copy to the same place
    }

    const Source& source_;
    const KeySource& keys_;
    const uint32_t base_, half_;
    const int* at_;
    int left_, tiles_, row_;
};

}  // namespace smla::cuda_attend::sm90::few
