// Producer of attend on Hopper for bf16 rows: copies them into wgmma's layout.
#pragma once

#include "engines/cuda/attend/sm90/row_cursor.cuh"

namespace smla::cuda_attend::sm90 {

// Producer role. A warp copies 16 keys of a tile, with 8 lanes per row: half of the columns as soon as that
// half of the stage is empty.
template <class Format>
class RowProducer {
public:
    __device__ RowProducer(const Arguments& args, const Tasks& tasks, const KeySources& keys, uint32_t base)
        : cursor_(args, tasks, keys, int(blockIdx.x), 0), keys_(keys), base_(base) {
        const uint32_t row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 8;
        to_ = base + chunk_at(row, threadIdx.x % 8);
    }

    // Runs the producer and returns the number of tiles.
    __device__ uint32_t run() {
        Pending now = resolve(cursor_.next()), next = resolve(cursor_.next());
#pragma unroll 1
        for (uint32_t tile = 0; tile < cursor_.end(); ++tile) {
            const uint32_t stage = tile & 1, phase = (tile >> 1 & 1) ^ 1;
            const int row = cursor_.next();
#pragma unroll
            for (uint32_t n = 0; n < 2; ++n) {
                const uint32_t half = stage ^ n, full = keys_full(base_, stage, half);
                cuda::mbarrier_wait(keys_empty(base_, stage, half), phase);
                copy<4>(now, to_ + kKeysAt + stage * kStageBytes + half * kHalfBytes, half * 512);
                if (n == 1 && Format::rope) copy<1>(now, to_ + kRingAt + tile % 3 * kTileBytes, 1024);
                cuda::mbarrier_arrive_after_copies(full);
                if (n == 0) {
                    note_valid(base_, stage, now.place);
                    __syncwarp();
                    if (threadIdx.x % 32 == 0) cuda::mbarrier_arrive(full);
                }
            }
            now = next, next = resolve(row);
        }
        cuda::cp_async_wait_all();
        return cursor_.end();
    }

private:
    struct Pending {  // place of a key of a tile
        uint32_t place;
        bool extra;
    };
    __device__ Pending resolve(int row) const {
        return {cursor_.place(row, cursor_.extra()), cursor_.extra()};
    }

    // Copies `Tiles` tiles of 64 columns, which begin at byte `offset` of the rows.
    template <int Tiles>
    __device__ void copy(const Pending& keys, uint32_t to, uint32_t offset) const {
        const char* const data = keys_.of[keys.extra].data + offset + 16 * (threadIdx.x % 8);
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t place = __shfl_sync(~0u, keys.place, 4 * i + threadIdx.x % 32 / 8);
            const char* const from = data + (uint64_t(place) << 4);
#pragma unroll
            for (uint32_t t = 0; t < uint32_t(Tiles); ++t)
                cuda::cp_async_16((to ^ ((4 * i & 7) << 4)) + 512 * i + t * kTileBytes, from + 128 * t,
                                  place != kHole);
        }
    }
    RowCursor<Format, 1> cursor_;
    const KeySources& keys_;
    const uint32_t base_;
    uint32_t to_;
};

}  // namespace smla::cuda_attend::sm90
