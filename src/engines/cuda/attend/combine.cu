// Combines the partial results of attend's splits.
//
// Math     out = sum_s 2^(peak2_s - peak2) * partial_s, normalized; peak2 is the largest of all splits. Then
//          the sink is added to the denominator. With out_positions, the last channels are rotated back.
// Tile     one block per token and head, 4 channels per thread. The order of the sum is fixed (8 splits,
//          then the next 8), whether one group of 4 warps adds all splits or up to 4 groups share them.
// Roles    every warp reduces the statistics of all splits independently, so the first barrier is for the
//          sums of the groups.
// Shared   per warp the weights of up to 128 splits | the sums of all groups except the first.
// Limit    latency: two independent loads (statistics, partial sums) after the attend grid has ended. This
//          grid is launched early on sm_90 and later, and waits for the attend grid.
#include "engines/cuda/attend/epilogue.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/ptx/math.cuh"
#include "engines/cuda/common/rotation.cuh"

#include <algorithm>

namespace smla::cuda_attend {

namespace {

constexpr int kGroup = kValueWidth / 4, kGroups = 4, kAhead = 8, kEach = kMaxSplits / 32;

struct Combined {
    float peak2, sum, largest2;
    bool any;
};

__device__ float warp_max_nan(float value) {
    for (int step = 16; step > 0; step /= 2) value = cuda::max_nan(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

// Reduces the statistics of all splits and writes each split's weight to `weights`.
__device__ Combined combine_statistics(const PartialStatistics* first, int64_t stride, int splits,
                                       float* weights) {
    const int lane = threadIdx.x % 32;
    PartialStatistics own[kEach];
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

// Loads the partial sums of 8 splits, starting at `split`. Splits without keys have also written sums.
__device__ void load_partials(const float4* sums, int64_t stride, int split, int splits,
                              float4 (&part)[kAhead]) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
        if (split + i < splits) part[i] = sums[(split + i) * stride];
}
__device__ float4 sum_parts(const float* weights, int split, int splits, const float4 (&part)[kAhead]) {
    float4 sum = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        const float weight = split + i < splits ? weights[split + i] : 0.f;
        if (weight == 0) continue;  // 0 * inf would make the sum NaN
        sum.x += weight * part[i].x, sum.y += weight * part[i].y;
        sum.z += weight * part[i].z, sum.w += weight * part[i].w;
    }
    return sum;
}
__device__ void add(float4& out, const float4& other) {
    out.x += other.x, out.y += other.y, out.z += other.z, out.w += other.w;
}

// Adds the sums of all groups in order; only the first group receives the result.
__device__ void reduce_groups(float4& out, const float4& own, int group, int groups) {
    __shared__ float4 others[kGroups - 1][kGroup];
    const int thread = threadIdx.x % kGroup;
    if (group > 0) others[group - 1][thread] = own;
    __syncthreads();
    if (group == 0) {
        add(out, own);
        for (int g = 1; g < groups; ++g) add(out, others[g - 1][thread]);
    }
    __syncthreads();
}

// Rotation of attend's output by the negated position.
struct OutRotation {
    Tensor positions{}, frequencies{};
    int first = kValueWidth;  // the first rotated channel

    explicit OutRotation(const smla_attend_args& args) {
        if (!smla::present(args.out_positions)) return;
        positions = args.out_positions;
        frequencies = args.out_frequencies;
        first -= 2 * int(args.out_frequencies.shape[0]);
    }
    // Returns cosine and sine of the negated angle for the channel pair that starts at `channel`. Not
    // inlined, so that the loads after it keep their registers.
    __device__ __noinline__ float2 turn(int64_t token, int channel) const {
        if (channel < first) return {1, 0};
        const double frequency = cuda::frequency_of(frequencies, (channel - first) / 2);
        return cuda::turn_of(-frequency * double(cuda::load_int(positions, token)));
    }
};

__global__ void __launch_bounds__(kGroups* kGroup, 2)
    combine(const __grid_constant__ Arguments args, const __grid_constant__ TileScheduler scheduler,
            const __grid_constant__ OutRotation rotation) {
    __shared__ float weights_of_warps[kGroups * kGroup / 32][kMaxSplits];
    float* const weights = weights_of_warps[threadIdx.x / 32];
    const int64_t heads = args.q.shape[1], t = blockIdx.x / heads, h = blockIdx.x % heads;
    const int64_t first = t * scheduler.splits() * heads + h, stride = heads * kGroup;
    const int group = threadIdx.x / kGroup, groups = blockDim.x / kGroup,
              channel = 4 * (threadIdx.x % kGroup);
    const auto* const sums =
        reinterpret_cast<const float4*>(scheduler.partials.sums + first * kValueWidth + channel);
    float4 part[kAhead], out = {};
    // The previous grid does not write positions, so they may be read before it ends (ptx/grid.cuh).
    const float2 turns[] = {rotation.turn(t, channel), rotation.turn(t, channel + 2)};
    cuda::follow_grid_before();
    load_partials(sums, stride, kAhead * group, scheduler.splits(), part);
    const Combined combined =
        combine_statistics(scheduler.partials.statistics + first, heads, scheduler.splits(), weights);
    __syncwarp();
    for (int begin = 0; begin < scheduler.splits(); begin += kAhead * groups) {
        const int split = begin + kAhead * group;
        if (begin > 0) load_partials(sums, stride, split, scheduler.splits(), part);
        const float4 sum = sum_parts(weights, split, scheduler.splits(), part);
        if (groups > 1) reduce_groups(out, sum, group, groups);
        else add(out, sum);
    }
    if (group > 0) return;
    Totals totals = {0.f, -INFINITY};
    if (combined.any) totals = finish(combined.peak2 * kLn2, combined.sum, sink_of(args, h));
    float2 pairs[2] = {{out.x * totals.factor, out.y * totals.factor},
                       {out.z * totals.factor, out.w * totals.factor}};
    const int64_t at = cuda::element(args.out, t, h) + channel;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (channel + 2 * i >= rotation.first) cuda::rotate_pair(turns[i], pairs[i].x, pairs[i].y);
        store_pair(args.out, at + 2 * i, pairs[i].x, pairs[i].y);
    }
    if (threadIdx.x == 0) store_statistics(args, t, h, totals.lse, combined.largest2 * kLn2);
}

}  // namespace

// More groups are faster as long as all blocks run concurrently with the blocks of the attend grid.
void combine_splits(const smla_attend_args& args, const TileScheduler& scheduler, const Env& env) {
    const int64_t blocks = args.q.shape[0] * args.q.shape[1];
    const int64_t fit = 2 * env.device->facts().multiprocessors / std::max<int64_t>(blocks, 1);
    const int most = std::min(kGroups, (scheduler.splits() + kAhead - 1) / kAhead);
    const int groups = int(std::clamp<int64_t>(fit, 1, most));
    cuda::launch_early(combine, blocks, groups * kGroup, 0, env, Arguments(args), scheduler,
                       OutRotation(args));
}

}  // namespace smla::cuda_attend
