// Division of a call of cuda_sm90_score into blocks, which depends only on shapes and the device.
#pragma once

#include "engines/cuda/score/sm90/config.h"

#include <algorithm>

namespace smla::cuda::sm90 {

struct ScoreSizes {
    int64_t tokens, heads, rows_of_request, columns;
    int multiprocessors;
    size_t shared_bytes;  // maximum per block
};

struct ScorePlan {
    int heads = 8, columns = 64, stages = 4;  // of the kernel's Shape
    int rows, steps, splits = 1;
    int64_t groups;
    size_t shared;

    ScorePlan(Products products, const ScoreSizes& sizes) : products_(products) {
        while (heads < sizes.heads) heads *= 2;
        const int64_t wanted = std::min<int64_t>(sizes.rows_of_request, kMostRows);
        // One row waits for its keys with any width. 16-bit keys, or more than four rows in a step, leave no
        // registers for wide products. Few heads share the kernels of many rows, to build fewer.
        if (products == Products::e4m3 && wanted * heads > columns && heads >= kWideHeads) columns = 128;
        steps = int(std::clamp<int64_t>(ceil_div(wanted * heads, columns), 1, kMostSteps));
        // A tile of many steps takes longer than the copy of its keys. Stages of mxfp4 are small.
        if (products != Products::bf16 && (steps > 2 || heads < kWideHeads)) stages = 2;
        while (steps > 1 && bytes(steps) > sizes.shared_bytes) --steps;
        rows = int(std::min<int64_t>(wanted, steps * columns / heads));
        shared = bytes(steps);
        groups = ceil_div(sizes.tokens, rows);
        splits = best_splits(sizes.columns, std::max(1, sizes.multiprocessors));
    }

private:
    size_t bytes(int count) const { return shared_bytes(products_, columns, stages, count); }

    // Cost model; the unit is half of the products of 64 columns. Blocks run in waves; a start costs 20 units
    // plus one per 64 columns; a tile costs at least its copy; all windows are full. Because real windows are
    // not full, the result is the most splits within 1/48 of the least cost, and two waves within 1/16: the
    // longest block determines the time of a single wave. Tuned on an H200 (log/cuda_score.md).
    int best_splits(int64_t all_columns, int64_t slots) const {
        constexpr int64_t kStart = 20, kMostRounds = 32;
        const int64_t tiles = std::max<int64_t>(1, ceil_div(all_columns, kKeys * kGroups));
        const int64_t blocks = std::max<int64_t>(groups, 1), fewest = ceil_div(blocks, slots);
        const int64_t width = steps * columns / 64, tile = std::max<int64_t>(2 * width, 5);
        int64_t best = 1, least = INT64_MAX / 2;
        for (int64_t rounds = fewest; rounds <= std::max(fewest, kMostRounds); ++rounds) {
            const int64_t cut = std::clamp<int64_t>(rounds * slots / blocks, 1, tiles);
            const int64_t cost = rounds * (kStart + width + ceil_div(tiles, cut) * tile);
            if (cost > least + least / (rounds == 2 ? 16 : 48)) continue;
            least = std::min(least, cost);
            best = cut;
        }
        return int(best);
    }

    Products products_;
};

}  // namespace smla::cuda::sm90
