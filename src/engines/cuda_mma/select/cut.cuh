// The k-th best of a set of 32-bit keys, by a block: histograms of 11 bits, from the top.
#pragma once

#include "engines/cuda_common/values.cuh"

namespace smla::cuda {

constexpr int kSelectThreads = 512, kSelectWarps = kSelectThreads / 32;
constexpr int kDigit = 11, kBins = 1 << kDigit;

// The order of select as integers: a better score has a larger key, -0 and +0 share one, NaN is below -inf.
__device__ inline uint32_t rank_key(float score) {
    const uint32_t bits = __float_as_uint(score + 0.f);  // -0 + 0 is +0
    const uint32_t key = bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
    return isnan(score) ? 0 : key;
}

constexpr uint32_t kLowestKey = 0x007fffff;  // of -inf; NaN alone is below

// The score of a key from kLowestKey on: score >= it says the same as rank_key(score) >= key.
__device__ inline float score_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

struct CutScratch {  // in shared memory
    uint32_t bins[kBins];
    uint32_t warps[kSelectWarps];
    uint32_t bin, above, inside;
};

// Sum over the threads before this one; `total` over all. Every thread calls it.
__device__ inline uint32_t block_scan(uint32_t value, uint32_t* warps, uint32_t& total) {
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
    uint32_t sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();  // `warps` may still be read
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    uint32_t sums = warps[lane % kSelectWarps];
#pragma unroll
    for (int step = 1; step < kSelectWarps; step *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, sums, step, kSelectWarps);
        if (lane % kSelectWarps >= step) sums += other;
    }
    total = __shfl_sync(~0u, sums, kSelectWarps - 1);
    const uint32_t before = __shfl_sync(~0u, sums, max(warp - 1, 0));
    return (warp > 0 ? before : 0) + sum - value;
}

// Counts of a thread, added to the bins a run at a time: long lists of equal scores would queue at one bin.
class RunCounter {
public:
    __device__ explicit RunCounter(uint32_t* bins) : bins_(bins) {}
    __device__ void add(uint32_t bin) {
        if (bin != bin_) {
            flush();
            bin_ = bin;
        }
        ++count_;
    }
    __device__ void flush() {
        if (count_) atomicAdd(bins_ + bin_, count_);
        count_ = 0;
    }

private:
    uint32_t* bins_;
    uint32_t bin_ = 0, count_ = 0;
};

// The same for short lists.
class PlainCounter {
public:
    __device__ explicit PlainCounter(uint32_t* bins) : bins_(bins) {}
    __device__ void add(uint32_t bin) { atomicAdd(bins_ + bin, 1u); }
    __device__ void flush() {}

private:
    uint32_t* bins_;
};

// Winners are the keys above `key` and `equal` of those that equal it.
struct Cut {
    uint32_t key, equal;
};

// The bin, counted from the top, that holds the need-th key.
__device__ inline void find_bin(CutScratch& scratch, uint32_t need) {
    constexpr int kPer = kBins / kSelectThreads;
    const int top = kBins - 1 - kPer * int(threadIdx.x);
    uint32_t sum = 0, total;
#pragma unroll
    for (int i = 0; i < kPer; ++i) sum += scratch.bins[top - i];
    uint32_t above = block_scan(sum, scratch.warps, total);
    if (above < need && need <= above + sum)
        for (int i = 0;; ++i) {
            const uint32_t inside = scratch.bins[top - i];
            if (need <= above + inside) {
                scratch.bin = uint32_t(top - i), scratch.above = above, scratch.inside = inside;
                break;
            }
            above += inside;
        }
    __syncthreads();
}

// The k best of the keys in [low, high] that `each` visits: each(f) calls f(key) for all of them, spread over
// the block's threads. 1 <= k <= their number. `digits`: at most so many histograms; fewer than 3 give a cut
// that may let more pass (then `equal` is 0).
template <class Counter, class Each>
__device__ Cut find_cut(CutScratch& scratch, uint32_t k, uint32_t low, uint32_t high, int digits,
                        const Each& each) {
    uint32_t base = low, need = k;
    for (int width = 32 - __clz(int(high - low)); width > 0 && digits > 0; --digits) {
        const int shift = max(width - kDigit, 0);
        __syncthreads();  // of the round before
        for (int i = int(threadIdx.x); i < kBins; i += kSelectThreads) scratch.bins[i] = 0;
        __syncthreads();
        Counter counter(scratch.bins);
        const uint32_t last =
            base + uint32_t((uint64_t(1) << width) - 1);  // wraps only where it ends at 2^32 - 1
        each([&](uint32_t key) {
            if (key >= base && (key <= last || last < base)) counter.add((key - base) >> shift);
        });
        counter.flush();
        __syncthreads();
        find_bin(scratch, need);
        base += scratch.bin << shift;
        need -= scratch.above;
        width = shift;
        if ((need == scratch.inside || (digits == 1 && width > 0)) && base > 0) return {base - 1, 0};
    }
    return {base, need};
}

}  // namespace smla::cuda
