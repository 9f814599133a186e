// Common parts of both attend kernels for Hopper: tasks of a grid, their key tiles, and addresses of keys.
#pragma once

#include "engines/cuda/attend/tile_scheduler.cuh"
#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/cp_async.cuh"
#include "engines/cuda/common/ptx/half.cuh"

namespace smla::cuda_attend::sm90 {

constexpr int kKeys = 64;   // keys per tile of the row list
constexpr int kHeads = 64;  // heads per block
constexpr int kWarpgroup = 128;

// Returns the byte offset of 16-byte chunk `chunk` of row `row` in a tile.
__device__ inline uint32_t chunk_at(uint32_t row, uint32_t chunk) {
    return row * 128 + ((chunk ^ (row & 7)) << 4);
}

// Tasks of a persistent grid: (token, split, group of 64 * Cluster heads); the group varies fastest.
struct Tasks {
    int count = 0;   // tasks of the call
    int blocks = 0;  // blocks of the grid that process them
    Divisor head_tiles, by_splits;
    Partials partials;

    __host__ __device__ int splits() const { return int(by_splits.by); }
};

constexpr uint32_t kHole = ~0u;  // place of a masked entry (-1) or of a row after the end of the list

// Addressing of a cache: a record begins 16 * (page * page_16 + token * row_16) bytes after `data`.
struct KeySource {
    const char* data = nullptr;
    uint32_t page_16 = 0, row_16 = 0;
};
// Returns the place of a record in units of 16 bytes, or kHole.
__device__ inline uint32_t record_place(const Source& source, const KeySource& keys, int row) {
    const uint32_t page = source.page_rows.quotient(uint32_t(row)),
                   token = uint32_t(row) - page * source.page_rows.by;
    const bool valid = uint32_t(row) < source.rows_below && token < uint32_t(source.cache.page_tokens);
    return valid ? page * keys.page_16 + token * keys.row_16 : kHole;
}
struct KeySources {
    KeySource of[2];  // primary, extra
};

struct Task {
    int partial, token, split, head;  // partial = token * splits + split; head: first head of the cluster

    __device__ Task(const Tasks& tasks, int index, int heads) {
        partial = int(tasks.head_tiles.quotient(uint32_t(index)));
        head = (index - partial * int(tasks.head_tiles.by)) * heads;
        token = int(tasks.by_splits.quotient(uint32_t(partial)));
        split = partial - token * tasks.splits();
    }
};

// Key tiles [first, end) of a task: the tiles of the primary list, then the tiles of the extra list. There is
// at least one: a task without keys has one tile of masked entries.
struct TileRange {
    int first, end, primary;  // primary: number of tiles of the whole primary list

    __device__ TileRange(const Arguments& args, const Tasks& tasks, const Task& task) {
        primary = tiles_of(args.sources[0], task.token);
        const int all = primary + tiles_of(args.sources[1], task.token);
        first = begin(all, task.split, tasks.by_splits);
        end = begin(all, task.split + 1, tasks.by_splits);
        if (end == first) end = first + 1;
    }
    __device__ int count() const { return end - first; }

private:
    static __device__ int tiles_of(const Source& source, int token) {
        return source.cache.format == SMLA_FORMAT_NONE ? 0 : (int(source.length(token)) + kKeys - 1) / kKeys;
    }
    static __device__ int begin(int tiles, int split, const Divisor& splits) {
        const uint32_t each = splits.quotient(uint32_t(tiles)), rest = uint32_t(tiles) - each * splits.by;
        return int(each) * split + min(split, int(rest));
    }
};

// Launches blocks of 64 heads or, with clusters of two blocks, 128 heads.
void launch(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
            const KeySources& keys, const Env& env);

// Launches the kernel for fp8_656, fp8_528, fp8_576 or fp8_512 records in blocks of 16, 32 or 64 heads.
void launch_raw(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
                const KeySources& keys, const Env& env);

}  // namespace smla::cuda_attend::sm90
