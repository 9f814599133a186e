// Iterates over the rows that a producer warp of attend on Hopper loads.
#pragma once

#include "engines/cuda/attend/sm90/config.h"

namespace smla::cuda_attend::sm90 {

// The row numbers of one producer warp, tile by tile, through all tasks of its block. Lanes 0 to 15 follow
// the warp's 16 keys of a tile, and so do lanes 16 to 31. With a cluster, lanes 0 to 15 are used only for
// rope, and lanes 16 to 31 follow the 8 keys (twice) that the warp converts for both blocks.
template <class Format, int Cluster>
class RowCursor {
public:
    // Starts at task `task`, whose first tile is the block's tile `first_tile`.
    __device__ RowCursor(const Arguments& args, const Tasks& tasks, const KeySources& keys, int task,
                         uint32_t first_tile)
        : args_(args), tasks_(tasks), keys_(keys), task_(task), end_(first_tile) {
        if (task_ < tasks_.count) enter();
    }
    // Starts to load the next tile's row number and returns it; -1 after the end of a list or of the tasks.
    __device__ int next() {
        if (tiles_ == 0 && task_ < tasks_.count) {
            task_ += tasks_.blocks / Cluster;
            if (task_ < tasks_.count) enter();
        }
        if (tiles_ == 0) return -1;
        if (Format::sources == 2 && !extra_ && first_ >= primary_) enter_source(1);
        --tiles_, ++end_;
        if (Format::sources == 2) ++first_;
        const int row = left_ > 0 ? __ldg(at_) : -1;
        at_ += kKeys * args_.sources[extra()].rows.stride_elems[1];
        left_ -= kKeys;
        return row;
    }
    // Returns the number of the tile after the last one that next() started.
    __device__ uint32_t end() const { return end_; }
    // Returns whether that last tile belongs to the extra source.
    __device__ bool extra() const { return Format::sources == 2 && extra_; }
    __device__ uint32_t place(int row, bool extra) const {
        return record_place(args_.sources[extra], keys_.of[extra], row);
    }
    // Returns the place of the scales of a valid fp8_584 record in units of 8 bytes.
    __device__ uint32_t scales_place(int row, bool extra) const {
        const Source& source = args_.sources[extra];
        const uint32_t page = source.page_rows.quotient(uint32_t(row)),
                       token = uint32_t(row) - page * source.page_rows.by;
        return page * (2 * keys_.of[extra].page_16) +
               uint32_t(source.cache.page_tokens) * (layout::Fp8_584::row / 8) + token;
    }

private:
    __device__ void enter() {
        const TileRange range(args_, tasks_, Task(tasks_, task_, kHeads * Cluster));
        tiles_ = range.count(), first_ = range.first, primary_ = range.primary;
        enter_source(0);
    }
    // Continues at tile first_ of the task.
    __device__ void enter_source(int index) {
        const Task task(tasks_, task_, kHeads * Cluster);
        const Source& source = args_.sources[index];
        const uint32_t lane = threadIdx.x % 32, warp = (threadIdx.x / 32) % 4;
        const uint32_t key =
            Cluster == 1 || lane < 16 ? 16 * warp + lane % 16 : 8 * (4 * (blockIdx.x % 2) + warp) + lane % 8;
        const int entry = (first_ - (index ? primary_ : 0)) * kKeys + int(key);
        const bool given = source.cache.format != SMLA_FORMAT_NONE;
        left_ = given ? int(source.length(task.token)) - entry : 0;
        at_ = static_cast<const int*>(source.rows.data) + cuda::element(source.rows, task.token, entry);
        extra_ = index != 0;
    }

    const Arguments& args_;
    const Tasks& tasks_;
    const KeySources& keys_;
    const int* at_ = nullptr;
    int task_, tiles_ = 0, first_ = 0, primary_ = 0, left_ = 0;
    uint32_t end_;
    bool extra_ = false;
};

// Stores for the consumers which of the warp's 16 keys of a stage are valid.
__device__ inline void note_valid(uint32_t base, uint32_t stage, uint32_t places) {
    const uint32_t valid = __ballot_sync(~0u, places != kHole) & 0xffff;
    if (threadIdx.x % 32 == 0)
        cuda::store_shared(base + kValidAt + 8 * stage + threadIdx.x / 32 % 4 * 2, uint16_t(valid));
}

}  // namespace smla::cuda_attend::sm90
