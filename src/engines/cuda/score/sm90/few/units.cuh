// Which tiles a block takes: equal shares of all tiles of the call, unit by unit.
#pragma once

#include "engines/cuda/score/sm90/few/config.h"

namespace smla::cuda::sm90::few {

// Windows, requests and tiles of all tokens, by the threads that multiply. A thread takes whole groups. All
// threads of the block meet in it: racecheck does not see that a barrier of some of them orders anything.
template <class Shape>
__device__ void find_tiles(const Task& task, Shared<Shape>& shared) {
    const int groups = (task.tokens + Shape::rows - 1) / Shape::rows;
    const int each = (groups + kConsumers - 1) / kConsumers * Shape::rows;  // tokens
    const int first = int(threadIdx.x) * each, last = min(first + each, task.tokens);
    for (int token = first; token < last; ++token) {
        const int64_t request = task.place.request(token);
        shared.windows[token] = task.window(token);
        shared.requests[token] = request >= 0 && request < task.place.table.shape[0] ? int(request) : -1;
    }
    int own = 0;
    for (int token = first; token < last; ++token) {
        if (shared.leads(token)) own += shared.seen(token, task.tokens).tiles();
        shared.ends[token] = own;
    }
    int before = own;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, before, step);
        if (int(threadIdx.x % 32) >= step) before += other;
    }
    if (threadIdx.x % 32 == 31) shared.sums[threadIdx.x / 32] = before;
    __syncthreads();
    const bool earlier = threadIdx.x % 32 < threadIdx.x / 32;  // that warp
    before += __reduce_add_sync(~0u, earlier ? shared.sums[threadIdx.x % 32] : 0) - own;
    for (int token = first; token < last; ++token) shared.ends[token] += before;
}

// The tiles of a block: equal shares of all.
struct Share {
    int begin, count;

    __device__ Share(const Task& task, int all) {
        begin = int(task.by_blocks.divide(uint64_t(all) * blockIdx.x));
        count = int(task.by_blocks.divide(uint64_t(all) * (blockIdx.x + 1))) - begin;
    }
};

// The units of a block one after the other: consecutive rows of one request, and which of their tiles are the
// block's. By whole warps.
template <class Shape>
class Units {
public:
    __device__ Units(const Task& task, const Shared<Shape>& shared, const Share& share)
        : tokens_(task.tokens), shared_(shared), share_(share), token_(first_token()) {}

    // done: tiles of the block before this unit.
    int token = 0, tile = 0, count = 0, done = 0;
    Seen seen;

    // The unit after this one; false: there is none.
    __device__ bool next() {
        done += count;
        if (done >= share_.count) return false;
        token = token_with(token_, share_.begin + done);
        token_ = token + 1;
        const int before = token ? shared_.ends[token - 1] : 0, end = shared_.ends[token];
        const int from = share_.begin + done - before;
        seen = shared_.seen(token, tokens_);
        tile = seen.begin / kKeys + from;
        count = min(end - before - from, share_.count - done);
        return true;
    }

private:
    __device__ static int lane() { return int(threadIdx.x % 32); }
    // Of 32 equal parts of all tokens, the first token of the part with the block's first tile.
    __device__ int first_token() const {
        const int step = (tokens_ + 31) / 32, last = min((lane() + 1) * step, tokens_) - 1;
        return __popc(__ballot_sync(~0u, shared_.ends[last] <= share_.begin)) * step;
    }
    // The first token from `token` on whose tiles end after `tile`.
    __device__ int token_with(int token, int tile) const {
        for (;; token += 32) {
            const unsigned after = __ballot_sync(~0u, shared_.ends[min(token + lane(), tokens_ - 1)] > tile);
            if (after) return token + __ffs(int(after)) - 1;
        }
    }

    const int tokens_;
    const Shared<Shape>& shared_;
    const Share share_;
    int token_;
};

}  // namespace smla::cuda::sm90::few
