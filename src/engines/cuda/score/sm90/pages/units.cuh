// Which tiles a block takes: equal shares of all tiles of the call, unit by unit.
#pragma once

#include "engines/cuda/score/sm90/pages/config.h"

namespace smla::cuda::sm90::pages {

// What a lane knows of its token.
struct Row {
    int request;
    Window window;

    // Of padding: the last token's request, and no window.
    __device__ Row(const Task& task, int token) {
        request = task.request(min(token, task.tokens - 1));
        window = task.window(min(token, task.tokens - 1));
        if (token >= task.tokens) window = {};
    }
};

// Costs of the units of 32 tokens, one per lane, of all units up to the lane's own. By a warp.
template <class Shape>
__device__ int add_units(const Row& row) {
    const int lane = int(threadIdx.x % 32), before = __shfl_up_sync(~0u, row.request, 1);
    const bool leads = lane % Shape::unit_rows == 0 || row.request != before;
    const unsigned after = __ballot_sync(~0u, leads) >> lane >> 1;  // units that begin behind the lane
    const int last = after ? lane + __ffs(int(after)) - 1 : 31;     // lane of the unit
    Seen seen(row.window);
#pragma unroll
    for (int step = 1; step < Shape::unit_rows; step *= 2) {
        const Seen other = seen.of_lane(lane + step);
        if (lane + step <= last) seen.add(other);
    }
    int sum = leads && seen.tiles() ? Shape::start_tiles + seen.tiles() : 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    return sum;
}

// Costs of all tokens, by the warps that multiply. All threads of the block meet in it: racecheck does not
// see that a barrier of some of them orders anything.
template <class Shape>
__device__ void find_tiles(const Task& task, Shared<Shape>& shared) {
    constexpr int kWarps = kConsumers / 32;
    const int lane = int(threadIdx.x % 32), warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
    const int each = (task.tokens + kConsumers - 1) / kConsumers * 32;  // tokens of a warp
    const int first = warp * each, last = min(first + each, task.tokens);
    int own = 0;
    Row row(task, first + lane);
    for (int at = first; at < last; at += 32) {
        const Row next(task, at + 32 + lane);
        const int sum = add_units<Shape>(row), token = at + lane;
        if (token < last) {
            shared.ends[token] = own + sum;
            if constexpr (Shape::keeps_tokens)
                shared.requests[token] = row.request, shared.windows[token] = row.window;
        }
        own += __shfl_sync(~0u, sum, 31);
        row = next;
    }
    if (lane == 0) shared.sums[warp] = own;
    __syncthreads();
    const int before = __reduce_add_sync(~0u, lane < warp ? shared.sums[lane % kWarps] : 0);
    for (int at = first; at < last; at += 32)
        if (at + lane < last) shared.ends[at + lane] += before;
}

// What a block takes: equal shares of all costs.
struct Share {
    int begin, count;

    __device__ Share(const Task& task, int all) {
        begin = int(task.by_blocks.divide(uint64_t(all) * blockIdx.x));
        count = __shfl_sync(~0u, int(task.by_blocks.divide(uint64_t(all) * (blockIdx.x + 1))) - begin, 0);
    }
};

// The units of a block one after the other: consecutive rows of one request, and which of their tiles are the
// block's. By whole warps; a lane looks at one row of a unit.
template <class Shape>
class Units {
public:
    __device__ Units(const Task& task, const Shared<Shape>& shared, const Share& share)
        : task_(task), shared_(shared), share_(share), token_(first_token()) {}

    int token = 0, rows = 0, request = -1;
    int tile = 0, count = 0, done = 0;  // done: tiles of the block before this unit
    Window window;                      // of the lane's row; empty if there is none

    // The unit after this one; false: there is none.
    __device__ bool next() {
        done += count;
        int first, end;  // of the unit's cost
        do {
            if (taken_ >= share_.count) return false;
            token = token_with(token_, share_.begin + taken_);
            token_ = token + 1;
            const int before = token ? shared_.ends[token - 1] : 0;
            first = share_.begin + taken_ - before;
            end = min(shared_.ends[token] - before, first + share_.count - taken_);
            taken_ += end - first;
            first = max(first - Shape::start_tiles, 0), end = max(end - Shape::start_tiles, 0);
        } while (first == end);
        tile = find_rows() / kKeys + first;
        count = end - first;
        return true;
    }

private:
    __device__ static int lane() { return int(threadIdx.x % 32); }
    // Returns the first column that any row sees.
    __device__ int find_rows() {
        const int own = token + lane();
        const bool in_group = lane() < Shape::unit_rows - token % Shape::unit_rows && own < task_.tokens;
        int asked = -2;
        window = {};
        if (in_group) asked = shared_.request(task_, own), window = shared_.window(task_, own);
        request = __shfl_sync(~0u, asked, 0);
        rows = __ffs(int(__ballot_sync(~0u, asked != request))) - 1;
        if (lane() >= rows) window = {};
        return __reduce_min_sync(~0u, window.begin < window.end ? window.begin : INT32_MAX);
    }
    // Of 32 equal parts of all tokens, the first token of the part with the block's first tile.
    __device__ int first_token() const {
        const int step = (task_.tokens + 31) / 32, last = min((lane() + 1) * step, task_.tokens) - 1;
        return __popc(__ballot_sync(~0u, shared_.ends[last] <= share_.begin)) * step;
    }
    // The first token from `token` on whose tiles end after `tile`.
    __device__ int token_with(int token, int tile) const {
        for (;; token += 32) {
            const unsigned after =
                __ballot_sync(~0u, shared_.ends[min(token + lane(), task_.tokens - 1)] > tile);
            if (after) return token + __ffs(int(after)) - 1;
        }
    }

    const Task& task_;
    const Shared<Shape>& shared_;
    const Share share_;
    int token_, taken_ = 0;  // where the next unit is looked for; costs of units so far
};

}  // namespace smla::cuda::sm90::pages
