// The copying warps, for queries, weights and units, and for keys.
#pragma once

#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/score/sm90/pages/units.cuh"
#include "engines/cuda/score/sm90/queries.cuh"

namespace smla::cuda::sm90::pages {

// Prefetches the part of the block table with the block's tiles, assuming that all tokens see all columns.
// Called by a warp.
__device__ inline void prefetch_table(const Task& task) {
    if (!task.place.present()) return;
    const float at = float(task.tokens) * float(blockIdx.x) / float(gridDim.x);
    const auto pages = task.place.pages_of(task.place.request(int(at)));
    const float share = at - floorf(at);
    const uint32_t block = uint32_t(share * float(pages.count)) + threadIdx.x % 32 * 32;
    if (block < pages.count) prefetch_line(pages.blocks + block * pages.stride);
}

// Prefetches queries and their scales into L2, a head per lane. Called by a warp.
template <class Shape>
__device__ void prefetch_mxfp4_queries(const Task& task, int token, int rows) {
#pragma unroll 1
    for (int i = int(threadIdx.x % 32); i < rows * Shape::heads; i += 32) {
        const int row = token + i / Shape::heads, head = i % Shape::heads;
        prefetch_line(query_at<Shape>(task, row, head));
        prefetch_line(static_cast<const char*>(task.q_scales.data) + element(task.q_scales, row, head));
    }
}

// Draws the next piece for this block. Called by a warp. `count`: previous draws of the block.
template <class Shape>
__device__ Share draw_piece(const Task& task, Shared<Shape>& shared, const Division& division,
                            uint32_t count) {
    int number = 0;
    if (threadIdx.x % 32 == 0) {
        number = int(atomicAdd(task.draws, 1u));
        // each block makes one unsuccessful draw
        if (number == division.pieces() + int(gridDim.x) - 1) atomicExch(task.draws, 0u);
        shared.drawn[count % kDraws] = number;
        mbarrier_arrive(shared_address(&shared.drawn_full[count % kDraws]));
    }
    return division.piece(__shfl_sync(~0u, number, 0));
}
// Returns a drawn piece to a warp that copies keys, which is never kDraws pieces behind: it copies tiles of
// each piece but the last, and a draw waits until the unit before the previous one is done.
template <class Shape>
__device__ Share drawn_piece(Shared<Shape>& shared, const Division& division, uint32_t count) {
    mbarrier_wait(shared_address(&shared.drawn_full[count % kDraws]), count / kDraws & 1);
    return division.piece(__shfl_sync(~0u, shared.drawn[count % kDraws], 0));
}

// The warp that copies queries and weights, and announces each unit to the multiplying warps. A unit without
// tiles marks the end.
template <class Shape>
__device__ void announce_units(const Task& task, Shared<Shape>& shared, const Division& division) {
    Units<Shape> units(task, shared, division.share());
    bool more = true;
    uint32_t draws = 0;
    for (uint32_t n = 0; more; ++n) {
        more = units.next();
        const uint32_t slot = n % kSlots;
        if constexpr (Shape::mxfp4) prefetch_mxfp4_queries<Shape>(task, units.token, more ? units.rows : 0);
        mbarrier_wait(shared_address(&shared.unit_empty[slot]), (n / kSlots & 1) ^ 1);
        if constexpr (Shape::draws)
            if (!more && division.draws()) {
                units.take(draw_piece(task, shared, division, draws++));
                more = units.next();
            }
        const int rows = more ? units.rows : 0;
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
    static constexpr int kPrefetched = 4;  // tiles; with 8 and 16 one token of 131,072 keys is slower

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
          block_stride_(task.place.table.stride_elems[1]),
          policy_(policy_of_read_once()) {}

    // Runs while windows are loaded.
    __device__ static void prepare(const Task& task, int warp) {
        touch(task);
        if (!Shape::many && warp < kCopyWarps) prefetch_tiles(task, warp);
    }

    __device__ void run(const Division& division) {
        Units<Shape> units(task_, shared_, division.share());
        int next = warp_;  // number of the tile in the block
        for (uint32_t draws = 0;;) {
            if (!units.next()) {
                if (!Shape::draws || !division.draws()) return;
                units.take(drawn_piece(shared_, division, draws++));
                if (!units.next()) return;
            }
            const int32_t* const pages = table_ + units.request * request_stride_;
            const uint32_t blocks = units.request < 0 ? 0 : blocks_;
            const int end = units.done + units.count;
            int page = -1;  // pages of this warp's next 32 tiles, one per lane
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
    // Reads the kernel parameters that are needed later, because the first read takes 65 cycles per 64 bytes.
    __device__ static void touch(const Task& task) {
        const Tensor& table = task.place.table;
        asm volatile("" ::"r"(task.tiles_shift), "l"(task.place.pages), "l"(task.page_stride),
                     "l"(table.data), "l"(table.shape[1]), "l"(table.stride_elems[0]),
                     "l"(table.stride_elems[1]));
    }
    // Prefetches the block's first tiles, assuming equally many tiles per token. Otherwise another block
    // copies them later.
    __device__ static void prefetch_tiles(const Task& task, int warp) {
        const float at = float(task.tokens) * float(blockIdx.x) / float(gridDim.x);
        const Row row(task, int(at));
        const Seen seen(row.window);
        const int tiles = seen.tiles(), number = lane() * kCopyWarps + warp,
                  tile = seen.begin / kKeys + int((at - floorf(at)) * float(tiles)) + number;
        if (number >= kPrefetched || row.request < 0 || tiles == 0 || tile * kKeys >= seen.end) return;
        const uint32_t block = uint32_t(tile) >> task.tiles_shift,
                       part = uint32_t(tile) % (1u << task.tiles_shift);
        int64_t page = block;
        if (task.place.present()) {
            const auto pages = task.place.pages_of(row.request);
            page = block < pages.count ? pages.blocks[block * pages.stride] : -1;
        }
        const bool whole = int(part + 1) * kKeys <= task.place.page_tokens;
        if (page < 0 || page >= task.place.pages || !whole) return;
        const char* const keys = task.data + page * task.page_stride;
        prefetch_bulk(keys + Record::row_at(int(part) * kKeys), kBytes);
        prefetch_bulk(keys + Record::scale_at(task.place.page_tokens, int(part) * kKeys), kScales);
    }
    __device__ static int lane() { return int(threadIdx.x % 32); }
    // Called by the whole warp; one thread issues the copies.
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
            const bool all = tiles_shift_ == 0;  // the tile is the whole page
            copy(stage.keys, row(page, part), all ? kBytes + kScales : kBytes, barrier);
            if (all) return;
        } else {
            copy_keys(stage, page, part, barrier);
        }
        copy(stage.scales, scales(page, part), kScales, barrier);
    }
    __device__ void copy(char* to, const char* from, int bytes, uint32_t barrier) const {
        if constexpr (Shape::many) copy_bulk(shared_address(to), from, bytes, barrier);
        else copy_bulk(shared_address(to), from, bytes, barrier, policy_);
    }
    __device__ void copy_keys(Stage<Shape>& stage, int page, int part, uint32_t barrier) const {
        const uint32_t to = shared_address(stage.keys);
        if constexpr (Shape::many) copy_box(to, &task_.key_map, part * kKeys, page, barrier);
        else copy_box(to, &task_.key_map, part * kKeys, page, barrier, policy_);
    }
    // The only page ends before or within the tile, where the bytes of scales may not be a multiple of 16.
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
        if constexpr (Shape::mxfp4) copy(stage.keys, row(page, part), codes, barrier);
        else copy_keys(stage, page, part, barrier);
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
    uint32_t blocks_;  // per request
    const int32_t* table_;
    int64_t request_stride_, block_stride_;
    const uint64_t policy_;  // policy for keys of few rows; keys of many rows are read again
};

}  // namespace smla::cuda::sm90::pages
