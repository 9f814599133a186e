// write_kv and write_index: encode [head | tail] of a token into the row that its slot names.
//
// A warp takes a token, four tokens per block: the row goes to shared memory as f32, is rotated there if
// asked (warp_hadamard), and is encoded from there (warp_encode) with tile maxima over the warp. The bytes
// equal those of the host's encoders. Limit: memory for thousands of tokens (4 B read and about 1 B written
// per value), latency for a few.
//
// Shared  one f32 row per warp.
#include "core/tensor.h"
#include "engines/cuda/common/hadamard.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/records.cuh"
#include "engines/cuda/generic/generic.h"

namespace smla {

namespace cuda {

namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(32 * kWarps)
    write_kernel(DeviceCache cache, Tensor head, Tensor tail, Tensor slots, bool hadamard) {
    extern __shared__ float rows[];
    const int64_t token = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (token >= slots.shape[0]) return;
    const int64_t slot = load_int(slots, token);
    if (cache.hole(slot)) return;
    float* const row = rows + int(threadIdx.x / 32) * cache.width;
    const int from_head = int(head.shape[1]);
    for (int d = int(threadIdx.x % 32); d < cache.width; d += 32)
        row[d] = d < from_head ? load_value(head, element(head, token, d))
                               : load_value(tail, element(tail, token, d - from_head));
    __syncwarp();
    if (hadamard) warp_hadamard(row, cache.width);
    warp_encode(cache, slot, row);
}

}  // namespace

}  // namespace cuda

void run_cuda_write(const smla_write_args& args, const Env& env) {
    const cuda::DeviceCache cache(args.cache);
    cuda::launch(cuda::write_kernel, ceil_div(args.slots.shape[0], cuda::kWarps), 32 * cuda::kWarps,
                 size_t(cuda::kWarps * cache.width) * sizeof(float), env, cache, args.head, args.tail,
                 args.slots, args.hadamard != 0);
}

}  // namespace smla
