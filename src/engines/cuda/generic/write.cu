// write_kv and write_index: encode [head | tail] of a token into the row that its slot names.
//
// A block takes a token: the row goes to shared memory as f32, all its values on their way at once, is
// rotated there if asked (warp_hadamard), and is encoded from there, tile by tile, by four warps. The bytes
// equal those of the host's encoders. Limit: memory for thousands of tokens (4 B read and about 1 B written
// per value), latency for a few.
//
// Shared  the row as f32.
#include "core/tensor.h"
#include "engines/cuda/common/hadamard.cuh"
#include "engines/cuda/common/index_check.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/records.cuh"
#include "engines/cuda/generic/generic.h"

namespace smla {

namespace cuda {

namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kBatch = 4;  // values of a thread that are on their way at once

// Values [0,width) of the row from one of its two parts.
__device__ void load_part(const Tensor& part, int64_t token, float* row) {
    const int width = int(part.shape[1]);
    for (int first = int(threadIdx.x); first < width; first += kBatch * kThreads) {
        float values[kBatch];
        const int count = min(kBatch, count_below(width, first, kThreads));
        load_values(part, element(part, token, first), kThreads * part.stride_elems[1], count, values);
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
            if (i < count) row[first + i * kThreads] = values[i];
    }
}

__global__ void __launch_bounds__(kThreads)
    write_kernel(const GridOrder order, const __grid_constant__ DeviceCache cache,
                 const __grid_constant__ Tensor head, const __grid_constant__ Tensor tail,
                 const __grid_constant__ Tensor slots, bool hadamard,
                 const __grid_constant__ IndexCheck check) {
    extern __shared__ float row[];
    if (check.is_mine()) return check_lists(check);
    if (!order.start()) return;
    const int64_t token = blockIdx.x, slot = load_int(slots, token);
    load_part(head, token, row);
    if (present(tail)) load_part(tail, token, row + head.shape[1]);
    if (cache.hole(slot)) return;
    __syncthreads();
    const Warps all{int(threadIdx.x) / 32, kWarps};
    if (hadamard) {
        if (all.index == 0) warp_hadamard(row, cache.width);
        __syncthreads();
    }
    encode(all, cache, slot, row);
}

}  // namespace

}  // namespace cuda

void run_cuda_write(const smla_write_args& args, const cuda::CallLists& lists, const Env& env) {
    const cuda::DeviceCache cache(args.cache);
    const int64_t tokens = args.slots.shape[0];
    const auto check = cuda::IndexCheck::of(lists, tokens, cuda::kThreads, env);
    cuda::launch_ordered(cuda::write_kernel, tokens + check.blocks, cuda::kThreads,
                         size_t(cache.width) * sizeof(float), env, cache, args.head, args.tail, args.slots,
                         args.hadamard != 0, check);
}

}  // namespace smla
