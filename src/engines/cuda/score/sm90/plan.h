// How a call of cuda_sm90_score is cut into blocks: from shapes and the device alone.
#pragma once

#include "engines/cuda/score/sm90/config.h"

#include <algorithm>

namespace smla::cuda::sm90 {

struct ScorePlan {
    int heads;  // of the kernel: columns per query row
    int rows, steps, splits = 1;
    int64_t groups;
    size_t shared;

    struct Shape {
        int64_t tokens, heads, requests, columns;  // requests: share no keys; 1 without a block table
        int multiprocessors;
        size_t shared_bytes;  // of a block at most
    };
    ScorePlan(Products products, const Shape& shape) {
        heads = 8;
        while (heads < shape.heads) heads *= 2;
        const int per_step = kColumns / heads, resident = resident_blocks(products, heads);
        const auto bytes = [&](int64_t n) { return sm90::shared_bytes(products, int(n), int(n) * per_step); };
        // 1 KB per block is reserved
        const size_t each = (shape.shared_bytes + 1024) / size_t(resident) - 1024;
        const int64_t wanted =
            std::max<int64_t>(1, shape.tokens / std::max<int64_t>(shape.requests, 1) +
                                     (shape.tokens % std::max<int64_t>(shape.requests, 1) != 0));
        steps = int(std::clamp<int64_t>((wanted + per_step - 1) / per_step, 1, kMostSteps));
        while (steps > 1 && bytes(steps) > each) --steps;
        rows = int(std::clamp<int64_t>(wanted, 1, steps * per_step));
        shared = bytes(steps);
        groups = (shape.tokens + rows - 1) / rows;
        splits = best_splits(shape.columns, std::max(1, resident * shape.multiprocessors));
    }

private:
    // Cost model, in steps of a tile: blocks run in rounds, a start costs kStart and half a step per step of
    // queries, one-step tiles wait for their keys, all windows are full. Takes the most splits within 1/32 of
    // the least cost, because windows are not all full.
    int best_splits(int64_t columns, int64_t slots) const {
        constexpr int64_t kStart = 6, kMostRounds = 32;  // in half steps
        const int64_t tiles = std::max<int64_t>(1, (columns + kKeys - 1) / kKeys);
        const int64_t blocks = std::max<int64_t>(groups, 1), fewest = (blocks + slots - 1) / slots;
        const int64_t tile_cost = std::max(2 * steps, 5);
        int64_t best = 1, least = INT64_MAX / 2;
        for (int64_t rounds = fewest; rounds <= std::max(fewest, kMostRounds); ++rounds) {
            const int64_t cut = std::max<int64_t>(1, std::min(tiles, rounds * slots / blocks));
            const int64_t cost = rounds * (kStart + steps + (tiles + cut - 1) / cut * tile_cost);
            if (cost > least + least / 32) continue;
            least = std::min(least, cost);
            best = cut;
        }
        return int(best);
    }
};

}  // namespace smla::cuda::sm90
