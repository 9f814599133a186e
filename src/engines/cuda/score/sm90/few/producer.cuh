// The warps that copy: queries, weights and the next unit; keys.
#pragma once

#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/score/sm90/few/units.cuh"
#include "engines/cuda/score/sm90/queries.cuh"

namespace smla::cuda::sm90::few {

// Asks L2 for the part of the block table where the block's tiles are if all tokens see all columns. By a
// warp.
__device__ inline void prefetch_table(const Task& task) {
    const float at = float(task.tokens) * float(blockIdx.x) / float(gridDim.x);
    const auto pages = task.place.pages_of(task.place.request(int(at)));
    const float share = at - floorf(at);
    const uint32_t block = uint32_t(share * float(pages.count)) + threadIdx.x % 32 * 32;
    if (block < pages.count) prefetch_line(pages.blocks + block * pages.stride);
}

// Asks L2 for queries and their scales, a head per lane. By a warp.
template <class Shape>
__device__ void prefetch_mxfp4_queries(const Task& task, int token, int rows) {
    for (int i = int(threadIdx.x % 32); i < rows * Shape::heads; i += 32) {
        const int row = token + i / Shape::heads, head = i % Shape::heads;
        prefetch_line(query_at<Shape>(task, row, head));
        prefetch_line(static_cast<const char*>(task.q_scales.data) + element(task.q_scales, row, head));
    }
}

// The warp that copies queries and weights, and tells those that multiply which unit comes next.
template <class Shape>
__device__ void announce_units(const Task& task, Shared<Shape>& shared, const Share& share) {
    Units<Shape> units(task, shared, share);
    for (uint32_t n = 0; units.next(); ++n) {
        const uint32_t slot = n % kSlots;
        const int rows = units.seen.rows;
        if constexpr (Shape::mxfp4) prefetch_mxfp4_queries<Shape>(task, units.token, rows);
        mbarrier_wait(shared_address(&shared.unit_empty[slot]), (n / kSlots & 1) ^ 1);
        if (threadIdx.x % 32 == 0) {
            Unit& unit = shared.units[slot];
            unit.token = units.token, unit.tile = units.tile, unit.count = units.count;
            for (int row = 0; row < Shape::rows; ++row)
                unit.windows[row] = row < rows ? shared.windows[units.token + row] : Window{};
            const uint32_t barrier = shared_address(&shared.unit_full[slot]);
            mbarrier_arrive_expect(barrier, int(sizeof shared.queries[slot]) + rows * task.heads * 4);
            if constexpr (!Shape::mxfp4)
                copy_box(shared_address(shared.queries[slot]), &task.query_map, 0, units.token, barrier);
            for (int row = 0; row < rows; ++row)
                copy_bulk(shared_address(&shared.weights[slot][row * Shape::heads]),
                          static_cast<const float*>(task.w.data) + element(task.w, units.token + row),
                          task.heads * 4, barrier);
        }
        __syncwarp();
    }
}

// A warp that copies every kCopyWarps-th tile of a block.
template <class Shape>
class Producer {
public:
    // Reads what it needs of the table's description, while windows come: that takes 65 cycles per 64 bytes.
    __device__ Producer(const Task& task, Shared<Shape>& shared, int warp)
        : task_(task),
          shared_(shared),
          warp_(warp),
          tiles_shift_(task.tiles_shift),
          blocks_(uint32_t(min(task.place.table.shape[1], int64_t(INT32_MAX)))),
          table_(static_cast<const int32_t*>(task.place.table.data)),
          request_stride_(task.place.table.stride_elems[0]),
          block_stride_(task.place.table.stride_elems[1]) {
        asm volatile(""
                     : "+r"(tiles_shift_), "+r"(blocks_), "+l"(table_), "+l"(request_stride_),
                       "+l"(block_stride_));
    }

    __device__ void run(const Share& share) {
        Units<Shape> units(task_, shared_, share);
        int next = warp_;  // tile of the block
        while (units.next()) {
            const int request = shared_.requests[units.token];
            const int32_t* const pages = table_ + request * request_stride_;
            const uint32_t blocks = request < 0 ? 0 : blocks_;
            const int end = units.done + units.count;
            int page = -1;  // of this warp's next 32 tiles, one per lane
            for (int known = 0; next < end; next += kCopyWarps, --known) {
                const int tile = units.tile + next - units.done;
                if (known == 0) {
                    const int later = lane() * kCopyWarps;
                    const uint32_t block = uint32_t(tile + later) >> tiles_shift_;
                    const bool named = next + later < end && block < blocks;
                    page = named ? __ldg(pages + block * block_stride_) : -1;
                    known = 32;
                }
                const int own = __shfl_sync(~0u, page, 32 - known);
                Stage<Shape>& stage = shared_.stages[uint32_t(next) % Shape::stages];
                mbarrier_wait(shared_address(&stage.empty), (uint32_t(next) / Shape::stages & 1) ^ 1);
                if (lane() == 0) copy_tile(stage, own, uint32_t(tile) % (1u << tiles_shift_));
                __syncwarp();
            }
        }
    }

private:
    __device__ static int lane() { return int(threadIdx.x % 32); }
    __device__ void copy_tile(Stage<Shape>& stage, int page, uint32_t part) const {
        using Record = KeyRecord<Shape::products>;
        constexpr int kBytes = kKeys * Shape::code_bytes, kScales = kKeys * kScaleBytes;
        const uint32_t barrier = shared_address(&stage.full);
        const bool comes = page >= 0 && page < task_.place.pages;
        stage.hole = !comes;
        mbarrier_arrive_expect(barrier, comes ? kBytes + kScales : 0);
        if (!comes) return;
        const char* const at = task_.data + page * task_.page_stride;
        if constexpr (Shape::mxfp4) {
            const bool all = tiles_shift_ == 0;  // of the page
            copy_bulk(shared_address(stage.keys), at + Record::row_at(part * kKeys),
                      all ? kBytes + kScales : kBytes, barrier);
            if (all) return;
        } else {
            copy_box(shared_address(stage.keys), &task_.key_map, int(part) * kKeys, page, barrier);
        }
        copy_bulk(shared_address(stage.scales), at + Record::scale_at(task_.place.page_tokens, part * kKeys),
                  kScales, barrier);
    }

    const Task& task_;
    Shared<Shape>& shared_;
    const int warp_;
    int tiles_shift_;
    uint32_t blocks_;  // of a request
    const int32_t* table_;
    int64_t request_stride_, block_stride_;
};

}  // namespace smla::cuda::sm90::few
