// The work of attend's blocks, and how the partials of a token's splits become its output.
#pragma once

#include "engines/cuda/attend/arguments.cuh"
#include "engines/cuda/attend/schedule.h"

#include <cstdint>

namespace smla::cuda_attend {

// Tile scheduler: one block per (token, split, group of heads), groups of heads fastest.
struct TileScheduler {
    Divisor head_tiles, by_splits;
    Partials partials;

    __host__ __device__ int splits() const { return int(by_splits.by); }
};

// Work of this block. Recomputed at each use to save registers.
struct WorkTile {
    int partial, token, head;  // partial = token * splits + split; head: the block's first

    __device__ WorkTile(const TileScheduler& scheduler, int heads) {
        uint32_t block;  // read again each time, not kept
        asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
        const uint32_t first = scheduler.head_tiles.quotient(block);
        partial = int(first);
        token = int(scheduler.by_splits.quotient(first));
        head = int(block - first * scheduler.head_tiles.by) * heads;
    }
    __device__ int split(const TileScheduler& scheduler) const {
        return partial - token * scheduler.splits();
    }
};

// combine.cu: merges the partials of a token's splits into `out`.
void combine_splits(const smla_attend_args& args, const TileScheduler& scheduler, const Env& env);

}  // namespace smla::cuda_attend
