// Kernel for contexts with check_indices: finds the first invalid integer of a call before the call runs, and
// writes it to the error word (engines/error_word.h).
//
// Tile      Warps process pieces of 32 units of the lists round-robin (index_parts.h).
// Result    Items are numbered by list, then by position. Each block stores the lowest number of an invalid
//           item with an atomic maximum of complements. Zero therefore means none, and the result does not
//           depend on the order of threads. The last block to arrive writes the word and resets the number to
//           zero. A word that has not been read is not overwritten.
// Grids     The grid depends only on shapes, so a graph may be replayed with other integers.
// Limit     Latency. The lists of a call are a megabyte, which all multiprocessors read in less than 1 us; a
//           launch, a load from memory and an atomic take 2 us more. The path without invalid values is
//           short, because all instructions come from memory once per call. If every value passed through the
//           rules, the kernel would take 14 us on an H200 before attend of 128 x 2048 rows. A thread loads 16
//           bytes at once, and each block accesses memory only for its values and its arrival.
#include "engines/cuda/common/index_parts.h"
#include "engines/cuda/common/jobs.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/error_word.h"

#include <algorithm>

namespace smla::cuda {

namespace {

constexpr int kThreads = 512, kBlocksPerMultiprocessor = 2;
constexpr unsigned kFound = 1u << 16;  // added to `arrived` by blocks that have found an invalid item
constexpr int kItemBits = 56;          // a tensor has at most 2^48 elements
static_assert(IndexScan::kMost < 1 << (63 - kItemBits));

struct IndexCheck {
    ErrorPlace* place;
    smla_stage stage;
    IndexScan scan;
    ListParts parts;
};

// Not inlined, because only invalid values need it.
__device__ __noinline__ void write_word(const IndexCheck& check, unsigned long long number) {
    const int64_t item = int64_t(number & ((1ull << kItemBits) - 1));
    const Finding found = examine(check.scan.lists[number >> kItemBits], item);
    check.place->word = {found.kind, check.stage, found.token, found.column, found.value};
}

__global__ void __launch_bounds__(kThreads) check_kernel(const __grid_constant__ IndexCheck check) {
    follow_grid_before();
    const int64_t warps = kThreads / 32, warp = int64_t(blockIdx.x) * warps + threadIdx.x / 32;
    const BadItem bad = scan_lists(check.parts, check.scan, warp, gridDim.x * warps, int(threadIdx.x % 32));
    ErrorPlace* const place = check.place;
    const bool found = bad.list != IndexScan::kMost && place->word.kind == SMLA_BAD_NONE;
    if (found)
        atomicMax(&place->first, ~((unsigned long long)bad.list << kItemBits | (unsigned long long)bad.item));
    const bool any = __syncthreads_or(found);
    if (threadIdx.x != 0 || (gridDim.x == 1 && !any)) return;  // a single block needs no count of arrivals
    if (any) __threadfence();                                  // after writing this block's numbers
    const unsigned before = atomicAdd(&place->arrived, any ? kFound + 1 : 1);
    if (before % kFound != gridDim.x - 1) return;
    place->arrived = 0;
    if (!any && before < kFound) return;
    __threadfence();  // before reading the other blocks' numbers
    write_word(check, ~atomicExch(&place->first, 0));
}

}  // namespace

void note_bad_value_on_gpu(const IndexScan& scan, Stage stage, const Env& env) {
    const ListParts parts = parts_of(scan);
    // A warp processes at least two pieces. A single block needs no synchronization with others.
    const int64_t wanted = ceil_div(parts.pieces, int64_t(2 * kThreads / 32)),
                  most = int64_t(env.device->facts().multiprocessors) * kBlocksPerMultiprocessor;
    launch_early(check_kernel, std::min({wanted, most, int64_t(kFound - 1)}), kThreads, 0, env,
                 IndexCheck{error_place(env.workspace), smla_stage(stage), scan, parts});
}

}  // namespace smla::cuda
