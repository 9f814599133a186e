// Contexts with check_indices: finds the first bad integer of a call, before the call, and writes it to the
// error word.
//
// A kernel on the call's stream examines every item of every list (ops/index_scan.h) and keeps the lowest
// number of a bad one: an atomic maximum of complements, so that zero means none and the result does not
// depend on the order of threads. The last block to arrive examines that item again, writes the error word
// and zeroes the number. Grids depend on shapes alone, so a graph may be replayed with other integers. An
// error word that nobody has read stays, and then nothing is scanned. On an H200 it takes 14 us before attend
// of 128 x 2048 rows, 7 us before map, where reading 1 MB of lists would take less than 1 us: why is open.
#include "engines/cuda/common/launch.cuh"
#include "engines/error_word.h"

#include <algorithm>

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 256, kBlocksPerMultiprocessor = 8;
constexpr int kItemBits = 56;  // a tensor has at most 2^48 elements
static_assert(IndexScan::kMost < 1 << (63 - kItemBits));

__device__ void scan(const IndexScan& scan, ErrorPlace* place) {
    const int64_t first = int64_t(blockIdx.x) * kThreads + threadIdx.x, step = int64_t(gridDim.x) * kThreads;
    for (int l = 0; l < scan.count; ++l) {
        const int64_t items = scan.lists[l].tokens * scan.lists[l].per_token;
        for (int64_t item = first; item < items; item += step) {
            if (examine(scan.lists[l], item).kind == SMLA_BAD_NONE) continue;
            const unsigned long long number = (unsigned long long)l << kItemBits | (unsigned long long)item;
            atomicMax(&place->first, ~number);
            return;  // the rest of this thread's items come later
        }
    }
}

__device__ bool last_to_arrive(ErrorPlace* place) {
    __threadfence();  // after this block's numbers
    if (atomicAdd(&place->arrived, 1) != gridDim.x - 1) return false;
    place->arrived = 0;
    __threadfence();  // before the other blocks' numbers are read
    return true;
}

// The word is written after every block has arrived, so all blocks of a launch see the same one.
__global__ void __launch_bounds__(kThreads)
    check_kernel(const __grid_constant__ IndexScan lists, smla_stage stage, ErrorPlace* place) {
    if (place->word.kind != SMLA_BAD_NONE) return;
    scan(lists, place);
    __syncthreads();
    if (threadIdx.x != 0 || !last_to_arrive(place)) return;
    const unsigned long long found = atomicExch(&place->first, 0);
    if (found == 0) return;
    const unsigned long long number = ~found;
    const int64_t item = int64_t(number & ((1ull << kItemBits) - 1));
    const Finding bad = examine(lists.lists[number >> kItemBits], item);
    place->word = {bad.kind, stage, bad.token, bad.column, bad.value};
}

}  // namespace

}  // namespace cuda

void note_bad_value_on_gpu(const IndexScan& scan, Stage stage, ErrorPlace* place, const Env& env) {
    int64_t items = 0;
    for (int l = 0; l < scan.count; ++l)
        items = std::max(items, scan.lists[l].tokens * scan.lists[l].per_token);
    const int64_t most = int64_t(env.device->facts().multiprocessors) * cuda::kBlocksPerMultiprocessor;
    cuda::launch(cuda::check_kernel, std::min(ceil_div(items, cuda::kThreads), most), cuda::kThreads, 0, env,
                 scan, smla_stage(stage), place);
}

}  // namespace smla
