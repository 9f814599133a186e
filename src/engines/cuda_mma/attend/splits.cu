// Joins the splits of attend's mma kernel, in their order.
//
// Maths: sums of splits relative to their own peaks, scaled to the largest peak and added; then the sink.
// Tile:  one block of 4 warps per token and head, 4 channels per thread; 8 splits' sums under way at a time.
// Roles: every warp reduces all statistics by itself, so no barrier is needed.
// Shared: for each warp the weights of up to 128 splits.
// Why:   latency is all there is: a chain of two loads, statistics and sums, after the grid
//        before has ended. On GPUs that can, the grid starts while that one still runs, and waits.
#include "engines/cuda_common/launch.cuh"
#include "engines/cuda_common/ptx/grid.cuh"
#include "engines/cuda_common/ptx/math.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

namespace {

constexpr int kThreads = kValueWidth / 4, kAhead = 8, kEach = kMaxSplits / 32;

struct Joined {
    float peak2, sum, largest2;
    bool any;
};

__device__ float warp_max_nan(float value) {
    for (int step = 16; step > 0; step /= 2) value = cuda::max_nan(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

// The statistics of all splits; each split's weight in `weights`.
__device__ Joined join_statistics(const PartStatistics* first, int64_t stride, int splits, float* weights) {
    const int lane = threadIdx.x % 32;
    PartStatistics own[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        own[i] = {-INFINITY, 0.f, -INFINITY, 0.f};
        if (lane + 32 * i < splits) own[i] = first[(lane + 32 * i) * stride];
    }
    float peak2 = -INFINITY, largest2 = -INFINITY, any = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        peak2 = cuda::max_nan(peak2, own[i].peak2);
        largest2 = cuda::max_nan(largest2, own[i].largest2);
        any += own[i].any;
    }
    peak2 = warp_max_nan(peak2);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const float weight = own[i].peak2 == -INFINITY ? 0.f : cuda::exp2_fast(own[i].peak2 - peak2);
        weights[lane + 32 * i] = weight;
        sum += weight == 0 ? 0.f : weight * own[i].sum;
    }
    return {peak2, cuda::warp_sum(sum), warp_max_nan(largest2), __any_sync(~0u, any != 0) != 0};
}

// 8 blocks per multiprocessor: without the number the compiler aims at more, and has no registers for kAhead.
__global__ void __launch_bounds__(kThreads, 8)
    join(const __grid_constant__ Arguments args, const __grid_constant__ Cut cut) {
    __shared__ float weights_of_warps[kThreads / 32][kMaxSplits];
    float* const weights = weights_of_warps[threadIdx.x / 32];
    cuda::wait_for_grid_before();
    const int64_t heads = args.q.shape[1], t = blockIdx.x / heads, h = blockIdx.x % heads;
    const int64_t first = t * cut.splits * heads + h;
    const Joined joined = join_statistics(cut.parts.statistics + first, heads, cut.splits, weights);
    __syncwarp();
    float4 out = {};
    const float4* const sums =
        reinterpret_cast<const float4*>(cut.parts.sums + first * kValueWidth) + threadIdx.x;
    for (int begin = 0; begin < cut.splits; begin += kAhead) {
        float4 part[kAhead];
        float weight[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            weight[i] = begin + i < cut.splits ? weights[begin + i] : 0.f;
            part[i] = {};  // what a split without a weight left is never read
            if (weight[i] != 0) part[i] = sums[(begin + i) * heads * kThreads];
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            out.x += weight[i] * part[i].x, out.y += weight[i] * part[i].y;
            out.z += weight[i] * part[i].z, out.w += weight[i] * part[i].w;
        }
    }
    Totals totals = {0.f, -INFINITY};
    if (joined.any) totals = finish(joined.peak2 * kLn2, joined.sum, sink_of(args, h));
    const int64_t at = cuda::element(args.out, t, h) + 4 * threadIdx.x;
    store_pair(args.out, at, out.x * totals.factor, out.y * totals.factor);
    store_pair(args.out, at + 2, out.z * totals.factor, out.w * totals.factor);
    if (threadIdx.x == 0) store_statistics(args, t, h, totals.lse, joined.largest2 * kLn2);
}

}  // namespace

void join_splits(const smla_attend_args& args, const Cut& cut, const Env& env) {
    cuda::launch_early(join, args.q.shape[0] * args.q.shape[1], kThreads, env, Arguments(args), cut);
}

}  // namespace smla::cuda_attend
