// The warps that copy: queries, weights and the next unit; keys.
#pragma once

#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/score/sm90/pages/units.cuh"
#include "engines/cuda/score/sm90/queries.cuh"

namespace smla::cuda::sm90::pages {

// Asks L2 for the part of the block table where the block's tiles are if all tokens see all columns. By a
// warp.
__device__ inline void prefetch_table(const Task& task) {
    if (!task.place.present()) return;
    const float at = float(task.tokens) * float(blockIdx.x) / float(gridDim.x);
    const auto pages = task.place.pages_of(task.place.request(int(at)));
    const float share = at - floorf(at);
    const uint32_t block = uint32_t(share * float(pages.count)) + threadIdx.x % 32 * 32;
    if (block < pages.count) prefetch_line(pages.blocks + block * pages.stride);
}

// Asks L2 for queries and their scales, a head per lane. By a warp.
template <class Shape>
__device__ void prefetch_mxfp4_queries(const Task& task, int token, int rows) {
#pragma unroll 1
    for (int i = int(threadIdx.x % 32); i < rows * Shape::heads; i += 32) {
        const int row = token + i / Shape::heads, head = i % Shape::heads;
        prefetch_line(query_at<Shape>(task, row, head));
        prefetch_line(static_cast<const char*>(task.q_scales.data) + element(task.q_scales, row, head));
    }
}

// The warp that copies queries and weights, and tells those that multiply which unit comes next; behind the
// last one comes one without tiles.
template <class Shape>
__device__ void announce_units(const Task& task, Shared<Shape>& shared, const Share& share) {
    Units<Shape> units(task, shared, share);
    bool more = true;
    for (uint32_t n = 0; more; ++n) {
        more = units.next();
        const uint32_t slot = n % kSlots;
        const int rows = more ? units.rows : 0;
        if constexpr (Shape::mxfp4) prefetch_mxfp4_queries<Shape>(task, units.token, rows);
        mbarrier_wait(shared_address(&shared.unit_empty[slot]), (n / kSlots & 1) ^ 1);
        Unit<Shape>& unit = shared.units[slot];
        const uint32_t barrier = shared_address(&shared.unit_full[slot]);
        if (threadIdx.x % 32 < Shape::unit_rows) unit.windows[threadIdx.x % 32] = units.window;
        if (threadIdx.x % 32) {
            mbarrier_arrive(barrier);
        } else {
            unit.token = units.token, unit.rows = rows, unit.team_log2 = units.team_log2;
            unit.tile = units.tile, unit.count = more ? units.count : 0;
            const int queries = more ? int(sizeof shared.queries[slot]) : 0;
            mbarrier_arrive_expect(barrier, queries + rows * task.heads * 4);
            if (queries)
                copy_box(shared_address(shared.queries[slot]), &task.query_map, 0, units.token, barrier);
#pragma unroll 1
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
    using Record = KeyRecord<Shape::products>;
    static constexpr int kBytes = kKeys * Shape::code_bytes, kScales = kKeys * kScaleBytes;

public:
    __device__ Producer(const Task& task, Shared<Shape>& shared, int warp)
        : task_(task),
          shared_(shared),
          warp_(warp),
          tiles_shift_(task.tiles_shift),
          blocks_(uint32_t(
              min(task.place.present() ? task.place.table.shape[1] : task.place.pages, int64_t(INT32_MAX)))),
          table_(static_cast<const int32_t*>(task.place.table.data)),
          request_stride_(task.place.table.stride_elems[0]),
          block_stride_(task.place.table.stride_elems[1]) {}

    // Reads what it will need of the description of the call: the first time that takes 65 cycles per 64
    // bytes, which pass while windows come.
    __device__ static void touch(const Task& task) {
        const Tensor& table = task.place.table;
        asm volatile("" ::"r"(task.tiles_shift), "l"(task.place.pages), "l"(task.page_stride),
                     "l"(table.data), "l"(table.shape[1]), "l"(table.stride_elems[0]),
                     "l"(table.stride_elems[1]));
    }

    __device__ void run(const Share& share) {
        Units<Shape> units(task_, shared_, share);
        int next = warp_;  // tile of the block
        while (units.next()) {
            const int32_t* const pages = table_ + units.request * request_stride_;
            const uint32_t blocks = units.request < 0 ? 0 : blocks_;
            const int end = units.done + units.count;
            int page = -1;  // of this warp's next 32 tiles, one per lane
            for (int known = 0; next < end; next += kCopyWarps, --known) {
                const int tile = units.tile + next - units.done;
                if (known == 0) {
                    const int later = lane() * kCopyWarps;
                    const uint32_t block = uint32_t(tile + later) >> tiles_shift_;
                    const bool named = next + later < end && block < blocks;
                    page = int(block);
                    if (!named) page = -1;
                    else if (table_) page = __ldg(pages + block * block_stride_);
                    known = 32;
                }
                const int own = __shfl_sync(~0u, page, 32 - known);
                Stage<Shape>& stage = shared_.stages[uint32_t(next) % Shape::stages];
                mbarrier_wait(shared_address(&stage.empty), (uint32_t(next) / Shape::stages & 1) ^ 1);
                copy_tile(stage, own, int(uint32_t(tile) % (1u << tiles_shift_)));
                __syncwarp();
            }
        }
    }

private:
    __device__ static int lane() { return int(threadIdx.x % 32); }
    // By the whole warp, one thread of which asks.
    __device__ void copy_tile(Stage<Shape>& stage, int page, int part) const {
        const bool comes = page >= 0 && page < task_.place.pages;
        const int present = min(int(task_.place.page_tokens) - part * kKeys, kKeys);
        if (comes && present < kKeys) return copy_last_tile(stage, page, part, present);
        if (lane()) return;
        const uint32_t barrier = shared_address(&stage.full);
        stage.set_present(comes ? kKeys : 0);
        mbarrier_arrive_expect(barrier, comes ? kBytes + kScales : 0);
        if (!comes) return;
        if constexpr (Shape::mxfp4) {
            const bool all = tiles_shift_ == 0;  // of the page
            copy_bulk(shared_address(stage.keys), row(page, part), all ? kBytes + kScales : kBytes, barrier);
            if (all) return;
        } else {
            copy_box(shared_address(stage.keys), &task_.key_map, part * kKeys, page, barrier);
        }
        copy_bulk(shared_address(stage.scales), scales(page, part), kScales, barrier);
    }
    // The only page ends within the tile, where bytes of scales may be no multiple of 16, or before.
    __device__ void copy_last_tile(Stage<Shape>& stage, int page, int part, int present) const {
        const auto* const from = reinterpret_cast<const int*>(scales(page, part));
#pragma unroll 1
        for (int key = lane(); key < present; key += 32)
            reinterpret_cast<int*>(stage.scales)[key] = __ldg(from + key);
        __syncwarp();
        if (lane()) return;
        const uint32_t barrier = shared_address(&stage.full);
        present = max(present, 0);
        const int codes = present * Shape::code_bytes;
        stage.set_present(present);
        mbarrier_arrive_expect(barrier, Shape::mxfp4 || !codes ? codes : kBytes);
        if (!codes) return;
        if constexpr (Shape::mxfp4) copy_bulk(shared_address(stage.keys), row(page, part), codes, barrier);
        else copy_box(shared_address(stage.keys), &task_.key_map, part * kKeys, page, barrier);
    }
    __device__ const char* row(int page, int part) const {
        return task_.data + page * task_.page_stride + Record::row_at(part * kKeys);
    }
    __device__ const char* scales(int page, int part) const {
        return task_.data + page * task_.page_stride +
               Record::scale_at(task_.place.page_tokens, part * kKeys);
    }

    const Task& task_;
    Shared<Shape>& shared_;
    const int warp_;
    int tiles_shift_;
    uint32_t blocks_;  // of a request
    const int32_t* table_;
    int64_t request_stride_, block_stride_;
};

}  // namespace smla::cuda::sm90::pages
