// check_indices inside a stage's own launch. A launch of its own costs a stage 3 us (check_indices.cu), most
// of them for waiting: a decode step of one token became 16 to 28 % longer.
//
// TokenCheck   for kernels whose blocks read all that the lists hold of a token: the block that meets a hole
//              where a mark of one, -1, would be right asks the rules. Nothing else is loaded, not even code:
//              at one token, a scan beside a kernel of 3 us took as long again to come from memory.
// IndexCheck   for the others: the last blocks of the grid scan the lists (index_parts.h).
//
// attend has lists of its own kind: attend/index_check.cuh.
#pragma once

#include "engines/cuda/common/call_lists.h"
#include "engines/cuda/common/error_place.cuh"
#include "engines/cuda/common/index_parts.h"
#include "engines/cuda/common/jobs.h"
#include "engines/cuda/common/ptx/grid.cuh"

#include <algorithm>

namespace smla::cuda {

// The lists of a call and where it notes the first bad item of them. Items have numbers, by list, then by
// place.
struct CheckedLists {
    ErrorPlace* place = nullptr;
    smla_stage stage = smla_stage(0);
    IndexScan scan;

    static CheckedLists of(const CallLists& call, const Env& env) {
        return {.place = error_place(env.workspace), .stage = smla_stage(call.stage), .scan = *call.scan};
    }
    static __device__ unsigned long long number(int list, int64_t item) {
        return (unsigned long long)list << kItemBits | (unsigned long long)item;
    }

    static constexpr int kItemBits = 56;  // a tensor has at most 2^48 elements
    static_assert(IndexScan::kMost < 1 << (63 - kItemBits));
};

// Out of line, as is all that only bad values need.
static __device__ __noinline__ void note_item(const CheckedLists& lists, unsigned long long number) {
    const int64_t item = int64_t(number & ((1ull << CheckedLists::kItemBits) - 1));
    const Finding found = examine(lists.scan.lists[number >> CheckedLists::kItemBits], item);
    lists.place->word = {found.kind, lists.stage, found.token, found.column, found.value};
}

struct IndexCheck {
    unsigned first = ~0u, blocks = 0;  // the blocks of the grid that scan: the last ones
    bool few = false;                  // items: one block has a warp for each list
    CheckedLists lists;
    ListParts parts;

    // At most `most` blocks of `threads` threads behind `others`, 0: one per multiprocessor; none without
    // check_indices. A warp takes two pieces or more: one block alone has nobody to agree with.
    static IndexCheck of(const CallLists& call, int64_t others, int threads, const Env& env,
                         int64_t most = 0) {
        IndexCheck out;
        if (!call.scan || others == 0) return out;
        if (most == 0) most = env.device->facts().multiprocessors;
        out.lists = CheckedLists::of(call, env);
        out.parts = parts_of(out.lists.scan);
        out.first = unsigned(others);
        const int64_t warps = threads / 32, wanted = ceil_div(out.parts.pieces, 2 * warps);
        out.blocks = unsigned(std::min({wanted, most, int64_t(kFound - 1)}));
        out.few = out.parts.short_lists && out.lists.scan.count <= warps && out.blocks == 1;
        return out;
    }
    // For kernels that ask before they wait for the grid before: the other way round each takes 1 us longer.
    __device__ bool is_mine() const { return __builtin_expect(blockIdx.x >= first, false); }
};

// The whole of a block that scans. Out of line: the kernel keeps its registers.
static __device__ __noinline__ void check_lists(const IndexCheck& check) {
    follow_grid_before();
    if (blockIdx.x - check.first >= check.blocks) return;  // fills a cluster
    const CheckedLists& lists = check.lists;
    // Few tokens: a warp per list, and as little code as can be.
    if (check.few) {
        const bool doubtful =
            doubts_one(check.parts, lists.scan, int(threadIdx.x / 32), int(threadIdx.x % 32));
        if (!__syncthreads_or(doubtful)) return;
    }
    const int64_t warps = blockDim.x / 32,
                  warp = int64_t(blockIdx.x - check.first) * warps + threadIdx.x / 32;
    const BadItem bad =
        scan_lists(check.parts, lists.scan, warp, check.blocks * warps, int(threadIdx.x % 32));
    note_first(lists.place, check.blocks, bad.list != IndexScan::kMost,
               CheckedLists::number(bad.list, bad.item),
               [&](unsigned long long number) { note_item(lists, number); });
}

// The number of the first bad item of a token, of those that this thread of the block looks at; ~0: none.
static __device__ __noinline__ unsigned long long first_of_token(const IndexScan& scan, int64_t token) {
    for (int l = 0; l < scan.count; ++l) {
        const int64_t per_token = scan.lists[l].per_token;
        for (int64_t i = threadIdx.x; i < per_token; i += blockDim.x) {
            const int64_t item = token * per_token + i;
            if (examine(scan.lists[l], item).kind != SMLA_BAD_NONE) return CheckedLists::number(l, item);
        }
    }
    return ~0ull;
}

// What a kernel gets to check its tokens with. It is compiled once for each: skipped at run time, the calls
// below cost a kernel of 3 us nearly 1 us, as the code that it skips comes from memory like any other.
struct NoCheck {};
struct TokenCheck {
    CheckedLists lists;
};

// The last statement of a kernel, for all threads of a block; `doubtful`: something of the token's is a hole,
// but not -1. A good token may be doubtful, no bad one may not be.
__device__ inline void check_token(const TokenCheck& check, int64_t token, bool doubtful) {
    const CheckedLists& lists = check.lists;
    const bool any = __syncthreads_or(doubtful);
    if (gridDim.x == 1 && !any) return;
    const unsigned long long bad = any ? first_of_token(lists.scan, token) : ~0ull;
    note_first(lists.place, gridDim.x, bad != ~0ull, bad,
               [&](unsigned long long number) { note_item(lists, number); });
}
__device__ inline void check_token(NoCheck, int64_t, bool) {}

// Calls launch(check) for a grid of `blocks` blocks, of which each works on a token or a part of one.
template <class Launch>
void with_check(const CallLists& call, int64_t blocks, const Env& env, Launch launch) {
    if (!call.scan || blocks == 0) return launch(NoCheck{});
    if (blocks < kFound) return launch(TokenCheck{CheckedLists::of(call, env)});
    note_bad_value_on_gpu(*call.scan, call.stage, env);  // more blocks than note_first() counts
    launch(NoCheck{});
}

}  // namespace smla::cuda
