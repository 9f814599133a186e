// Combines the partial results of attend's splits.
//
// Math     out = sum_s 2^(peak2_s - peak2) * partial_s, normalized; peak2 is the largest of all splits. Then
//          the sink is added to the denominator. With out_positions, the last channels are rotated back.
// Tile     a row is one head of one token. Many rows of up to 8 splits: one warp per row and 16 channels per
//          thread, so that more rows are in flight. Other calls: one block per row, 4 channels per thread.
//          The order of the sum is fixed (8 splits, then the next 8), whether a warp or a group of 4 warps
//          adds all splits or up to 4 groups share them.
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

constexpr int kGroup = kValueWidth / 4, kGroups = 4, kLoads = 8, kEach = kMaxSplits / 32;

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

// Channels of one thread if a row has `Lanes` threads: chunks of 4, which alternate between the threads.
template <int Lanes>
struct Chunks {
    static constexpr int kCount = kGroup / Lanes, kAhead = kLoads / kCount;  // chunks; splits per load

    float4 of[kCount];

    __device__ void add(const Chunks& other) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
            of[c].x += other.of[c].x, of[c].y += other.of[c].y;
            of[c].z += other.of[c].z, of[c].w += other.of[c].w;
        }
    }
    __device__ void add(float weight, const Chunks& part) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
            of[c].x += weight * part.of[c].x, of[c].y += weight * part.of[c].y;
            of[c].z += weight * part.of[c].z, of[c].w += weight * part.of[c].w;
        }
    }
};

// Loads the partial sums of kAhead splits, starting at `split`. Splits without keys have also written sums.
template <int Lanes>
__device__ void load_partials(const float4* sums, int64_t stride, int split, int splits,
                              Chunks<Lanes> (&part)[Chunks<Lanes>::kAhead]) {
#pragma unroll
    for (int i = 0; i < Chunks<Lanes>::kAhead; ++i)
        if (split + i < splits)
#pragma unroll
            for (int c = 0; c < Chunks<Lanes>::kCount; ++c)
                part[i].of[c] = sums[(split + i) * stride + c * Lanes];
}
// Adds the loaded partial sums, multiplied by their weights.
template <int Lanes>
__device__ void add_parts(const float* weights, int split, int splits,
                          const Chunks<Lanes> (&part)[Chunks<Lanes>::kAhead], Chunks<Lanes>& sum) {
#pragma unroll
    for (int i = 0; i < Chunks<Lanes>::kAhead; ++i) {
        const float weight = split + i < splits ? weights[split + i] : 0.f;
        if (weight != 0) sum.add(weight, part[i]);  // 0 * inf would make the sum NaN
    }
}

// Adds the sums of all groups in order; only the first group receives the result.
__device__ void reduce_groups(Chunks<kGroup>& out, const Chunks<kGroup>& own, int group, int groups) {
    __shared__ Chunks<kGroup> others[kGroups - 1][kGroup];
    const int thread = threadIdx.x % kGroup;
    if (group > 0) others[group - 1][thread] = own;
    __syncthreads();
    if (group == 0) {
        out.add(own);
        for (int g = 1; g < groups; ++g) out.add(others[g - 1][thread]);
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

// Writes the output of each row. Lanes: threads per row. A row of kGroup lanes has a block, whose groups
// share the splits.
template <int Lanes>
__global__ void __launch_bounds__(Lanes == kGroup ? kGroups * kGroup : kGroup, Lanes == kGroup ? 2 : 6)
    combine(const __grid_constant__ Arguments args, const __grid_constant__ TileScheduler scheduler,
            const __grid_constant__ OutRotation rotation) {
    using Sums = Chunks<Lanes>;
    __shared__ float weights_of_warps[(Lanes == kGroup ? kGroups * kGroup : kGroup) / 32][kMaxSplits];
    float* const weights = weights_of_warps[threadIdx.x / 32];
    const int team = threadIdx.x / Lanes, group = Lanes == kGroup ? team : 0,
              groups = Lanes == kGroup ? blockDim.x / kGroup : 1, lane = threadIdx.x % Lanes;
    const int64_t heads = args.q.shape[1],
                  row = Lanes == kGroup ? blockIdx.x : int64_t(blockIdx.x) * (kGroup / Lanes) + team;
    if (Lanes != kGroup && row >= args.q.shape[0] * heads) return;
    const int64_t t = row / heads, h = row % heads;
    const int64_t first = t * scheduler.splits() * heads + h, stride = heads * kGroup;
    const auto* const sums =
        reinterpret_cast<const float4*>(scheduler.partials.sums + first * kValueWidth + 4 * lane);
    Sums part[Sums::kAhead], out = {};
    // The previous grid does not write positions, so they may be read before it ends (ptx/grid.cuh).
    float2 turns[2];
    if (Lanes == kGroup) turns[0] = rotation.turn(t, 4 * lane), turns[1] = rotation.turn(t, 4 * lane + 2);
    cuda::follow_grid_before();
    load_partials<Lanes>(sums, stride, Sums::kAhead * group, scheduler.splits(), part);
    const Combined combined =
        combine_statistics(scheduler.partials.statistics + first, heads, scheduler.splits(), weights);
    __syncwarp();
    for (int begin = 0; begin < scheduler.splits(); begin += Sums::kAhead * groups) {
        const int split = begin + Sums::kAhead * group;
        if (begin > 0) load_partials<Lanes>(sums, stride, split, scheduler.splits(), part);
        if constexpr (Lanes == kGroup) {
            Sums sum = {};
            add_parts<Lanes>(weights, split, scheduler.splits(), part, sum);
            if (groups > 1) reduce_groups(out, sum, group, groups);
            else out.add(sum);
        } else {
            add_parts<Lanes>(weights, split, scheduler.splits(), part, out);
        }
    }
    if (group > 0) return;
    Totals totals = {0.f, -INFINITY};
    if (combined.any) totals = finish(combined.peak2 * kLn2, combined.sum, sink_of(args, h));
    const int64_t at = cuda::element(args.out, t, h);
#pragma unroll
    for (int c = 0; c < Sums::kCount; ++c) {
        float2 pairs[2] = {{out.of[c].x * totals.factor, out.of[c].y * totals.factor},
                           {out.of[c].z * totals.factor, out.of[c].w * totals.factor}};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int channel = 4 * (lane + c * Lanes) + 2 * i;
            if (channel >= rotation.first)
                cuda::rotate_pair(Lanes == kGroup ? turns[i] : rotation.turn(t, channel), pairs[i].x,
                                  pairs[i].y);
            store_pair(args.out, at + channel, pairs[i].x, pairs[i].y);
        }
    }
    if (lane == 0) store_statistics(args, t, h, totals.lse, combined.largest2 * kLn2);
}

constexpr int kManyRows = 4;  // rows per multiprocessor above which a row is one warp's work

}  // namespace

// More groups are faster as long as all blocks run concurrently with the blocks of the attend grid.
void combine_splits(const smla_attend_args& args, const TileScheduler& scheduler, const Env& env) {
    const int64_t rows = args.q.shape[0] * args.q.shape[1], processors = env.device->facts().multiprocessors;
    const OutRotation rotation(args);
    if (rows > kManyRows * processors && scheduler.splits() <= kLoads)
        return cuda::launch_early(combine<32>, ceil_div(rows, int64_t(kGroup / 32)), kGroup, 0, env,
                                  Arguments(args), scheduler, rotation);
    const int64_t fit = 2 * processors / std::max<int64_t>(rows, 1);
    const int most = std::min(kGroups, (scheduler.splits() + kLoads - 1) / kLoads);
    const int groups = int(std::clamp<int64_t>(fit, 1, most));
    cuda::launch_early(combine<kGroup>, rows, groups * kGroup, 0, env, Arguments(args), scheduler, rotation);
}

}  // namespace smla::cuda_attend
