// What the select kernels that read a row once share: the floor that a sample of the row gives, the columns
// that reach it, and the exact selection of rows where there are too few or too many of those.
#pragma once

#include "engines/cuda/select/list.cuh"

#include <cfloat>
#include <cmath>

namespace smla::cuda {

constexpr int kRoom = 6144, kMostWinners = 4096;
constexpr int kExpectedMost = kRoom * 3 / 4;  // candidates that a floor may be chosen for

struct Candidates {  // of a row, in shared memory or scratch
    uint32_t keys[kRoom];
    int numbers[kRoom];
};

struct CandidateShared {
    Candidates found;
    CutScratch cut;
    uint32_t count, least, best;
};

__host__ __device__ constexpr int samples_of(int64_t columns) {
    return int(columns < 32 * 256 ? 256 : columns > 32 * kRoom ? kRoom : columns / 32);
}

// Floor that `target` of the sampled keys reach, more or less, from linear bins between their mean and their
// largest; 0 if fewer lie above the mean, or if many share the bin.
__device__ inline uint32_t linear_floor(const uint32_t* keys, int samples, uint32_t target,
                                        CutScratch& scratch) {
    const int tid = int(threadIdx.x), lane = tid % 32;
    float sum = 0, most = -FLT_MAX, count = 0;
#pragma unroll 1
    for (int i = tid; i < samples; i += kSelectThreads) {
        const float score = score_of(max(keys[i], kLowestKey));
        if (fabsf(score) > FLT_MAX) continue;
        sum += score, most = fmaxf(most, score), count += 1;
    }
    float* const parts = reinterpret_cast<float*>(scratch.bins);  // [3][warps]
    const auto reduce = [&](auto add) {
#pragma unroll
        for (int step = 16; step; step /= 2) {
            sum += __shfl_xor_sync(~0u, sum, step);
            count += __shfl_xor_sync(~0u, count, step);
            most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        }
        add();
    };
    reduce([&] {
        if (lane) return;
        parts[tid / 32] = sum, parts[kSelectWarps + tid / 32] = count,
                    parts[2 * kSelectWarps + tid / 32] = most;
    });
    __syncthreads();
    const bool part = lane < kSelectWarps;
    sum = part ? parts[lane] : 0, count = part ? parts[kSelectWarps + lane] : 0;
    most = part ? parts[2 * kSelectWarps + lane] : -FLT_MAX;
    reduce([] {});
    const float mean = sum / count, step = (most - mean) / kBins;  // of nothing finite: NaN
    const float rate = 1 / step;
    if (!(step > 0 && step <= FLT_MAX && rate <= FLT_MAX)) return 0;
    __syncthreads();
    *reinterpret_cast<uint4*>(scratch.bins + 4 * tid) = uint4{};
    __syncthreads();
#pragma unroll 1
    for (int i = tid; i < samples; i += kSelectThreads) {
        const float score = score_of(max(keys[i], kLowestKey));
        if (score >= mean) atomicAdd(scratch.bins + int(fminf((score - mean) * rate, kBins - 1)), 1u);
    }
    __syncthreads();
    if (!find_bin(scratch, target)) return 0;
    if (scratch.above + scratch.inside > target + target / 8 + 4) return 0;
    return rank_key(fmaf(float(scratch.bin), step, mean));
}

// Floor that a few more than k columns should reach, from a sample in found.keys; 0: none, all columns pass.
template <class List>
__device__ uint32_t sampled_floor(const List& list, int k, CandidateShared& shared) {
    const int samples = list.sample(shared.found.keys, samples_of(list.count()));
    __syncthreads();
    const float share = float(samples) / float(list.count()), rank = float(k) * share;
    const float target = fminf(rank + 8 * sqrtf(rank) + 4, float(kExpectedMost) * share);
    if (!(target >= 1 && target < float(samples))) return 0;
    uint32_t floor = 0;
    if (4 * target < float(samples))  // else it hardly lies above the mean
        floor = linear_floor(shared.found.keys, samples, uint32_t(target), shared.cut);
    if (floor == 0) {
        const Cut cut =
            find_cut<PlainCounter>(shared.cut, uint32_t(target), 0, UINT32_MAX, 2, [&](const auto& f) {
                for (int i = int(threadIdx.x); i < samples; i += kSelectThreads) f(shared.found.keys[i]);
            });
        floor = cut.equal ? cut.key : cut.key + 1;
    }
    __syncthreads();  // candidates overwrite the sample
    return floor;
}

// Floor if k winners of earlier columns are known: the worst of them.
template <class List>
__device__ uint32_t kept_floor(const List& list, CandidateShared& shared) {
    uint32_t least = UINT32_MAX;
    for (int i = int(threadIdx.x); i < list.kept(); i += kSelectThreads) least = min(least, list.key(i));
    least = __reduce_min_sync(~0u, least);
    if (threadIdx.x % 32 == 0) atomicMin(&shared.least, least);
    __syncthreads();
    return shared.least;
}

// Appends the columns that reach the floor. Counts all, keeps as many as there is room for.
template <class List>
__device__ void collect(const List& list, uint32_t floor, int part, int parts, CandidateShared& shared) {
    const int lane = int(threadIdx.x % 32);
    const bool all = floor == 0, sparse = list.count() > 4 * kRoom;
    const float least = score_of(max(floor, kLowestKey));
    list.groups(
        [&](const auto& group) {
            uint32_t passed = 0;
#pragma unroll
            for (int e = 0; e < group.size; ++e) passed |= uint32_t(group.scores[e] >= least) << e;
            passed = (all ? ~0u : passed) & group.here;
            const uint32_t mine = __popc(passed);
            if (!__any_sync(~0u, mine)) return;
            uint32_t sum = mine;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const uint32_t other = __shfl_up_sync(~0u, sum, step);
                if (lane >= step) sum += other;
            }
            uint32_t at = 0;
            if (lane == 31) at = atomicAdd(&shared.count, sum);
            at = __shfl_sync(~0u, at, 31) + sum - mine;
            if (sparse) {
                for (; passed && at < kRoom; passed &= passed - 1, ++at) {
                    const int number = group.number(__ffs(int(passed)) - 1);
                    shared.found.keys[at] = list.key(number);  // from L1: registers have no index
                    shared.found.numbers[at] = number;
                }
                return;
            }
#pragma unroll
            for (int e = 0; e < group.size; ++e)
                if (passed >> e & 1) {
                    if (at < kRoom)
                        shared.found.keys[at] = rank_key(group.scores[e]),
                        shared.found.numbers[at] = group.number(e);
                    ++at;
                }
        },
        part, parts);
}

// Too many or too few candidates. If many columns equal the floor (zeros of relu, say), the floor is the cut.
template <class List>
__device__ void select_otherwise(const List& list, uint32_t floor, int k, int base, const Winners& winners,
                                 CandidateShared& shared) {
    uint32_t mine = 0, above;
    list.each([&](uint32_t key, int) { mine += key > floor; });
    block_scan(mine, shared.cut.warps, above);
    if (shared.count >= uint32_t(k) && above < uint32_t(k))
        put_in_order(list, Cut{floor, uint32_t(k) - above}, base, winners, shared.cut);
    else select_exactly(list, k, base, winners, shared.cut);
}

}  // namespace smla::cuda
