// Contexts with check_indices: finds the first bad integer of a call, before the call, and writes it to the
// error word.
//
// A kernel on the call's stream scans every list (index_parts.h) and keeps the lowest number of a bad item:
// an atomic maximum of complements, so that zero means none and the result does not depend on the order of
// threads. If a block has found one, the last block to arrive examines that item again, writes the error word
// and zeroes the number. Grids depend on shapes alone, so a graph may be replayed with other integers. An
// error word that nobody has read stays.
//
// Nothing that the call itself touches is written here, and the call follows no bad integer. So a kernel that
// is launched early behind this one need not wait for it: sm90's attend waits when its work is done.
//
// Limit: latency. A call's lists are a megabyte, which all multiprocessors read in less than 1 us; a launch,
// a load from memory and an atomic are 2 us more. So what runs where nothing is wrong is short: all
// instructions come from memory once per call (with every value through the rules, on an H200 the kernel took
// 14 us before attend of 128 x 2048 rows), a thread loads 16 bytes at once, and each block asks memory for
// nothing but its values and its turn.
#include "engines/cuda/common/index_parts.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/error_word.h"

#include <algorithm>

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 512, kBlocksPerMultiprocessor = 2;  // of a list
constexpr int kItemBits = 56;                                // a tensor has at most 2^48 elements
static_assert(IndexScan::kMost < 1 << (63 - kItemBits));
constexpr unsigned kFound = 1u << 16;  // added to `arrived` by blocks that have found something
constexpr int64_t kMostBlocks = kFound / IndexScan::kMost - 1;  // of a list

// Counts this block as done. True in the last block if any block has found something; it then sees what all
// of them have found.
__device__ bool has_to_note(ErrorPlace* place, bool found) {
    if (found) __threadfence();  // after this block's numbers
    const unsigned before = atomicAdd(&place->arrived, found ? kFound + 1 : 1);
    if (before % kFound != gridDim.x - 1) return false;
    place->arrived = 0;
    if (!found && before < kFound) return false;
    __threadfence();  // before the other blocks' numbers are read
    return true;
}

__device__ void note(const IndexScan& lists, smla_stage stage, ErrorPlace* place) {
    const unsigned long long number = ~atomicExch(&place->first, 0);
    const int64_t item = int64_t(number & ((1ull << kItemBits) - 1));
    const Finding bad = examine(lists.lists[number >> kItemBits], item);
    place->word = {bad.kind, stage, bad.token, bad.column, bad.value};
}

// The word is written after every block has arrived, so all blocks of a launch see the same one.
__global__ void __launch_bounds__(kThreads)
    check_kernel(ErrorPlace* place, smla_stage stage, const __grid_constant__ ListParts parts,
                 const __grid_constant__ IndexScan lists) {
    int l = 0;
    while (blockIdx.x >= parts.of[l].end) ++l;
    wait_for_grid_before();
    start_next_grid();  // after the wait: what starts now may read what earlier grids wrote
    const ListPart& part = parts.of[l];
    const int64_t bad =
        scan_part(part, lists.lists[l], int64_t(blockIdx.x - part.begin) * kThreads + threadIdx.x,
                  int64_t(part.end - part.begin) * kThreads);
    const bool found = bad >= 0 && place->word.kind == SMLA_BAD_NONE;
    if (found) atomicMax(&place->first, ~((unsigned long long)l << kItemBits | (unsigned long long)bad));
    const bool any = __syncthreads_or(found);
    if (threadIdx.x == 0 && has_to_note(place, any)) note(lists, stage, place);
}

}  // namespace

}  // namespace cuda

void note_bad_value_on_gpu(const IndexScan& scan, Stage stage, ErrorPlace* place, const Env& env) {
    const int64_t most = int64_t(env.device->facts().multiprocessors) * cuda::kBlocksPerMultiprocessor;
    const cuda::ListParts parts = cuda::parts_of(scan, cuda::kThreads, std::min(most, cuda::kMostBlocks));
    cuda::launch_early(cuda::check_kernel, parts.blocks, cuda::kThreads, 0, env, place, smla_stage(stage),
                       parts, scan);
}

}  // namespace smla
