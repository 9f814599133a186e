// Contexts with check_indices: a kernel that finds the first bad integer of a call, before the call, and
// writes it to the error word. For stages whose kernels do not scan their lists themselves (index_check.cuh).
//
// Grids depend on shapes alone, so a graph may be replayed with other integers.
//
// Limit: latency. A call's lists are a megabyte, which all multiprocessors read in less than 1 us; a launch,
// a load from memory and an atomic are 2 us more. So what runs where nothing is wrong is short: all
// instructions come from memory once per call (with every value through the rules, on an H200 the kernel took
// 14 us before attend of 128 x 2048 rows), a thread loads 16 bytes at once, and each block asks memory for
// nothing but its values and its turn.
#include "engines/cuda/common/index_check.cuh"
#include "engines/cuda/common/launch.cuh"

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 512, kBlocksPerMultiprocessor = 2;

__global__ void __launch_bounds__(kThreads) check_kernel(const __grid_constant__ IndexCheck check) {
    check_lists(check);
}

}  // namespace

}  // namespace cuda

void note_bad_value_on_gpu(const IndexScan& scan, Stage stage, const Env& env) {
    const int64_t most = int64_t(env.device->facts().multiprocessors) * cuda::kBlocksPerMultiprocessor;
    cuda::IndexCheck check = cuda::IndexCheck::of({&scan, stage}, 1, cuda::kThreads, env, most);
    check.first = 0;  // no other blocks
    cuda::launch_early(cuda::check_kernel, check.blocks, cuda::kThreads, 0, env, check);
}

}  // namespace smla
