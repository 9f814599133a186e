// Contexts with check_indices: finds the first bad integer of a call, before the call, and writes it to the
// error word.
//
// Two kernels on the call's stream. The first examines every item of every list (ops/index_scan.h) and keeps
// the lowest number of a bad one: an atomic maximum of complements, so that zero means none and the result
// does not depend on the order of threads. The second examines that item again, writes the error word and
// zeroes the number. Grids depend on shapes alone, so a graph may be replayed with other integers. An error
// word that nobody has read stays, and then nothing is scanned. Limit: reading the lists once.
#include "engines/cuda/common/launch.cuh"
#include "engines/error_word.h"

#include <algorithm>

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 256, kBlocksPerMultiprocessor = 8;
constexpr int kItemBits = 56;  // a tensor has at most 2^48 elements
static_assert(IndexScan::kMost < 1 << (63 - kItemBits));

__global__ void __launch_bounds__(kThreads)
    scan_kernel(const __grid_constant__ IndexScan scan, ErrorPlace* place) {
    if (place->word.kind != SMLA_BAD_NONE) return;
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

__global__ void note_kernel(const __grid_constant__ IndexScan scan, smla_stage stage, ErrorPlace* place) {
    if (place->first == 0) return;
    const unsigned long long number = ~place->first;
    const int64_t item = int64_t(number & ((1ull << kItemBits) - 1));
    const Finding found = examine(scan.lists[number >> kItemBits], item);
    place->word = {found.kind, stage, found.token, found.column, found.value};
    place->first = 0;
}

}  // namespace

}  // namespace cuda

void note_bad_value_on_gpu(const IndexScan& scan, Stage stage, ErrorPlace* place, const Env& env) {
    int64_t items = 0;
    for (int l = 0; l < scan.count; ++l)
        items = std::max(items, scan.lists[l].tokens * scan.lists[l].per_token);
    const int64_t most = int64_t(env.device->facts().multiprocessors) * cuda::kBlocksPerMultiprocessor;
    cuda::launch(cuda::scan_kernel, std::min(ceil_div(items, cuda::kThreads), most), cuda::kThreads, 0, env,
                 scan, place);
    cuda::launch(cuda::note_kernel, 1, 1, 0, env, scan, smla_stage(stage), place);
}

}  // namespace smla
