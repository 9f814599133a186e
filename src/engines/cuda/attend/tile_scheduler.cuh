// Assigns work to the blocks of attend, and declares the kernel that merges the partial results of splits.
#pragma once

#include "engines/cuda/attend/arguments.cuh"
#include "engines/cuda/attend/schedule.h"

#include <cstdint>

namespace smla::cuda_attend {

// Tile scheduler with one block per (token, split, group of heads); the group of heads varies fastest.
struct TileScheduler {
    Divisor head_tiles, by_splits;
    Partials partials;

    __host__ __device__ int splits() const { return int(by_splits.by); }
};

// The work of this block. Recomputed at each use to save registers.
struct WorkTile {
    int partial, token, head;  // partial = token * splits + split; head: first head of the block

    __device__ WorkTile(const TileScheduler& scheduler, int heads) {
        uint32_t block;  // volatile, so that it is read at each use instead of kept in a register
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

// Merges the partial results of a token's splits into `out` (combine.cu).
void combine_splits(const smla_attend_args& args, const TileScheduler& scheduler, const Env& env);

}  // namespace smla::cuda_attend
