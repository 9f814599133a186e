// Division of tiles among blocks: equal shares of the cost of all tiles of the call, unit by unit.
#pragma once

#include "engines/cuda/score/sm90/pages/config.h"

namespace smla::cuda::sm90::pages {

// A lane's token.
struct Row {
    int request;
    Window window;

    // A padding lane gets the last token's request and no window.
    __device__ Row(const Task& task, int token) {
        request = task.request(min(token, task.tokens - 1));
        window = task.window(min(token, task.tokens - 1));
        if (token >= task.tokens) window = {};
    }
};

// Returns the costs of units of whole groups up to the lane's unit, a token per lane. Called by a warp.
template <class Shape>
__device__ int add_units(const Row& row, int group, int tokens) {
    const int lane = int(threadIdx.x % 32), before = __shfl_up_sync(~0u, row.request, 1);
    const bool leads = lane % group == 0 || row.request != before;
    const unsigned after = __ballot_sync(~0u, leads) >> lane >> 1;  // units that begin after the lane
    const int last = min(after ? lane + __ffs(int(after)) - 1 : 31, tokens - 1);  // last lane of the unit
    Seen seen(lane < tokens ? row.window : Window{});
#pragma unroll
    for (int step = 1; step < Shape::unit_rows; step *= 2) {
        const Seen other = seen.of_lane(lane + step);
        if (lane + step <= last) seen.add(other);
    }
    const int tiles = leads ? seen.tiles() : 0;
    int sum = tiles ? Shape::start_cost + (tiles << Shape::team_log2(last - lane + 1)) : 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    return sum;
}

// The tokens of a multiplying warp, in whole groups.
struct TokensOfWarp {
    int warp, first, last;

    // The shuffle shows the compiler that the warp's number is the same in all lanes.
    __device__ explicit TokensOfWarp(const Task& task) : warp(__shfl_sync(~0u, int(threadIdx.x / 32), 0)) {
        const int all = kConsumers / 32 * task.chunk, each = (task.tokens + all - 1) / all * task.chunk;
        first = warp * each, last = min(first + each, task.tokens);
    }
};

// Sums the costs of each warp's tokens. All threads of the block wait, then join_costs turns them into sums
// over all tokens, and all wait again.
template <class Shape>
__device__ void add_costs(const Task& task, Shared<Shape>& shared) {
    const int lane = int(threadIdx.x % 32);
    const TokensOfWarp own(task);
    int sum = 0;
    Row row(task, own.first + lane);
    for (int at = own.first; at < own.last; at += task.chunk) {
        const Row next(task, at + task.chunk + lane);
        const int tokens = min(task.chunk, own.last - at), token = at + lane;
        const int of_units = add_units<Shape>(row, task.group, tokens);
        if (lane < tokens) {
            shared.ends[token] = sum + of_units;
            if constexpr (Shape::keeps_tokens)
                shared.requests[token] = row.request, shared.windows[token] = row.window;
        }
        sum += __shfl_sync(~0u, of_units, 31);
        row = next;
    }
    if (lane == 0) shared.sums[own.warp] = sum;
}
template <class Shape>
__device__ void join_costs(const Task& task, Shared<Shape>& shared) {
    constexpr int kWarps = kConsumers / 32;
    const int lane = int(threadIdx.x % 32);
    const TokensOfWarp own(task);
    const int before = __reduce_add_sync(~0u, lane < own.warp ? shared.sums[lane % kWarps] : 0);
    for (int at = own.first; at < own.last; at += 32)
        if (at + lane < own.last) shared.ends[at + lane] += before;
}

// A range of all costs.
struct Share {
    int begin, count;
};

// Division of all costs into equal shares. Long calls leave a twelfth, at most 64 tiles per block, undivided;
// blocks that have finished their share draw pieces of it.
class Division {
public:
    __device__ Division(const Task& task, int all, bool draws) : task_(task), all_(all), shared_(all) {
        const int blocks = int(gridDim.x);
        if (draws && task.draws && all / blocks >= kLeastTiles)
            shared_ -= min(all / kDrawnPart, kMostDrawn * blocks);
    }
    __device__ Share share() const {
        const int begin = int(task_.by_blocks.divide(uint64_t(shared_) * blockIdx.x)),
                  end = int(task_.by_blocks.divide(uint64_t(shared_) * (blockIdx.x + 1)));
        return {begin, __shfl_sync(~0u, end - begin, 0)};
    }
    __device__ bool draws() const { return shared_ < all_; }
    __device__ int pieces() const { return (all_ - shared_ + kPiece - 1) / kPiece; }
    // Returns an empty share if no piece has this number.
    __device__ Share piece(int number) const {
        const int begin = shared_ + number * kPiece;
        return {begin, max(min(all_ - begin, kPiece), 0)};
    }

private:
    static constexpr int kPiece = 8, kDrawnPart = 12, kMostDrawn = 64, kLeastTiles = 96;

    const Task& task_;
    int all_, shared_;  // costs in tiles, if pieces are drawn
};

// Iterates over the units of a block: consecutive rows of one request, with those of their tiles that belong
// to the block. Called by whole warps; a lane reads one row of a unit.
template <class Shape>
class Units {
public:
    __device__ Units(const Task& task, const Shared<Shape>& shared, const Share& share)
        : task_(task), shared_(shared), share_(share), token_(first_token()) {}

    __device__ void take(const Share& share) {
        share_ = share, taken_ = 0, count = 0;
        token_ = first_token();
    }

    int token = 0, rows = 0, request = -1, team_log2 = 0;
    int tile = 0, count = 0, done = 0;  // done: tiles of the block before this unit
    Window window;                      // window of the lane's row, empty without a row

    // Finds the next unit; returns false if there is none.
    __device__ bool next() {
        done += count;
        do {
            if (taken_ >= share_.count) return false;
            token = token_with(token_, share_.begin + taken_);
            token_ = token + 1;
            find_rows();
            const int before = token ? shared_.ends[token - 1] : 0, from = share_.begin + taken_ - before;
            const int to = min(shared_.ends[token] - before, from + share_.count - taken_);
            taken_ += to - from;
            tile = first_tile_ + tiles_before(from);
            count = first_tile_ + tiles_before(to) - tile;
        } while (count == 0);
        return true;
    }

private:
    __device__ static int lane() { return int(threadIdx.x % 32); }
    // Finds the unit's rows, from `token` to the end of its request or group.
    __device__ void find_rows() {
        const int own = token + lane();
        const bool in_group = lane() < task_.group - token % task_.group && own < task_.tokens;
        int asked = -2;
        window = {};
        if (in_group) asked = shared_.request(task_, own), window = shared_.window(task_, own);
        request = __shfl_sync(~0u, asked, 0);
        rows = __ffs(int(__ballot_sync(~0u, asked != request))) - 1;
        team_log2 = Shape::team_log2(rows);
        if (lane() >= rows) window = {};
        first_tile_ = __reduce_min_sync(~0u, Seen(window).begin) / kKeys;
    }
    // Returns the tiles of the unit that begin below `cost`.
    __device__ int tiles_before(int cost) const {
        return (max(cost - Shape::start_cost, 0) + (1 << team_log2) - 1) >> team_log2;
    }
    // Returns the first token of the 1/32 of all tokens in which the block's share begins.
    __device__ int first_token() const {
        const int step = (task_.tokens + 31) / 32, last = min((lane() + 1) * step, task_.tokens) - 1;
        return __popc(__ballot_sync(~0u, shared_.ends[last] <= share_.begin)) * step;
    }
    // Returns the first token from `token` on whose cumulative cost exceeds `cost`.
    __device__ int token_with(int token, int cost) const {
        for (;; token += 32) {
            const unsigned after =
                __ballot_sync(~0u, shared_.ends[min(token + lane(), task_.tokens - 1)] > cost);
            if (after) return token + __ffs(int(after)) - 1;
        }
    }

    const Task& task_;
    const Shared<Shape>& shared_;
    Share share_;
    int token_, taken_ = 0;  // start of the search for the next unit; cost of units so far
    int first_tile_ = 0;     // first tile that any row of the unit sees
};

}  // namespace smla::cuda::sm90::pages
