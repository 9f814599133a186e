// Contexts with check_indices: finds the first bad integer of a call, before the call, and writes it to the
// error word. For kernels that do not scan their lists themselves, as those of attend do
// (attend/index_check.cuh).
//
// A kernel on the call's stream scans every list (index_parts.h); error_place.cuh says how its blocks agree
// on the first bad item, which the last of them examines again. Grids depend on shapes alone, so a graph may
// be replayed with other integers.
//
// Limit: latency. A call's lists are a megabyte, which all multiprocessors read in less than 1 us; a launch,
// a load from memory and an atomic are 2 us more. So what runs where nothing is wrong is short: all
// instructions come from memory once per call (with every value through the rules, on an H200 the kernel took
// 14 us before attend of 128 x 2048 rows), a thread loads 16 bytes at once, and each block asks memory for
// nothing but its values and its turn.
#include "engines/cuda/common/error_place.cuh"
#include "engines/cuda/common/index_parts.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"

#include <algorithm>

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 512, kBlocksPerMultiprocessor = 2;  // of a list
constexpr int kItemBits = 56;                                // a tensor has at most 2^48 elements
static_assert(IndexScan::kMost < 1 << (63 - kItemBits));
constexpr int64_t kMostBlocks = kFound / IndexScan::kMost - 1;  // of a list

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
    // by list, then by item
    const unsigned long long own = (unsigned long long)l << kItemBits | (unsigned long long)bad;
    note_first(place, gridDim.x, bad >= 0, own, [&](unsigned long long number) {
        const int64_t item = int64_t(number & ((1ull << kItemBits) - 1));
        const Finding first = examine(lists.lists[number >> kItemBits], item);
        place->word = {first.kind, stage, first.token, first.column, first.value};
    });
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
