// The k-th largest of a set of 32-bit keys, by one block: radix select with 11-bit histograms.
#pragma once

#include "engines/cuda/common/values.cuh"

namespace smla::cuda {

constexpr int kSelectThreads = 512, kSelectWarps = kSelectThreads / 32;
constexpr int kDigit = 11, kBins = 1 << kDigit;
constexpr float kNarrow = 1e-30f;  // for a narrower range, bins of equal width would need a scale beyond f32

// Returns a score as an integer in select's order: better scores are larger, -0 equals +0, NaN is below -inf.
__device__ inline uint32_t rank_key(float score) {
    const uint32_t bits = __float_as_uint(score + 0.f);  // -0 + 0 is +0
    const uint32_t key = bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
    return isnan(score) ? 0 : key;
}

constexpr uint32_t kLowestKey = 0x007fffff;  // key of -inf; only NaN is below

// Inverse of rank_key for keys >= kLowestKey: score >= score_of(key) if and only if rank_key(score) >= key.
__device__ inline float score_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

struct CutScratch {  // in shared memory
    uint32_t bins[kBins];
    uint32_t warps[32];
    uint32_t bin, above, inside;
};

// Whether redux sums warps, which is faster; before sm_90, a kernel of few rows has no register for it.
#if __CUDA_ARCH__ >= 900
constexpr bool kReduces = true;
#else
constexpr bool kReduces = false;
#endif

// Returns the exclusive prefix sum over a block of kWarps warps; `total` is the sum of all. Every thread
// calls this. Integer may pack several short counts.
template <int kWarps = kSelectWarps, class Integer>
__device__ inline Integer block_scan(Integer value, Integer* warps, Integer& total) {
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
    Integer sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const Integer other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();  // `warps` may still be read
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    if constexpr (sizeof(Integer) == 4 && kReduces) {
        const Integer of_warp = lane < kWarps ? warps[lane] : 0;
        total = __reduce_add_sync(~0u, of_warp);
        return __reduce_add_sync(~0u, lane < warp ? of_warp : 0) + sum - value;
    }
    Integer sums = warps[lane % kWarps];
#pragma unroll
    for (int step = 1; step < kWarps; step *= 2) {
        const Integer other = __shfl_up_sync(~0u, sums, step, kWarps);
        if (lane % kWarps >= step) sums += other;
    }
    total = __shfl_sync(~0u, sums, kWarps - 1);
    const Integer before = __shfl_sync(~0u, sums, max(warp - 1, 0));
    return (warp > 0 ? before : 0) + sum - value;
}

// Counts a run of equal bins with one atomic, because long lists of equal scores would contend for one bin.
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

// Counts each key with one atomic, for short lists.
class PlainCounter {
public:
    __device__ explicit PlainCounter(uint32_t* bins) : bins_(bins) {}
    __device__ void add(uint32_t bin) { atomicAdd(bins_ + bin, 1u); }
    __device__ void flush() {}

private:
    uint32_t* bins_;
};

// Winners are the keys above `key`, and `equal` of the keys equal to `key`.
struct Cut {
    uint32_t key, equal;
};

// Finds the bin with the need-th largest key.
template <int Threads>
__device__ void find_bin(CutScratch& scratch, uint32_t need) {
    constexpr int kPer = kBins / Threads;
    const int top = kBins - 1 - kPer * int(threadIdx.x);
    uint32_t sum = 0, total;
#pragma unroll
    for (int i = 0; i < kPer; ++i) sum += scratch.bins[top - i];
    uint32_t above = block_scan<Threads / 32>(sum, scratch.warps, total);
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

// Returns the cut through the keys in [low, high] that leaves the k best; 1 <= k <= their number. each(f)
// calls f(key) for every key, spread over the block's `Threads` threads. `digits` limits the histograms; with
// fewer than 3 the cut may pass more than k, and `equal` is 0 then.
template <class Counter, int Threads = kSelectThreads, class Each>
__device__ Cut find_cut(CutScratch& scratch, uint32_t k, uint32_t low, uint32_t high, int digits,
                        const Each& each) {
    uint32_t base = low, need = k;
    for (int width = 32 - __clz(int(high - low)); width > 0 && digits > 0; --digits) {
        const int shift = max(width - kDigit, 0);
        __syncthreads();  // bins may still be read
        for (int i = int(threadIdx.x); i < kBins; i += Threads) scratch.bins[i] = 0;
        __syncthreads();
        Counter counter(scratch.bins);
        const uint32_t last =
            base + uint32_t((uint64_t(1) << width) - 1);  // wraps only if the range ends at 2^32 - 1
        each([&](uint32_t key) {
            if (key >= base && (key <= last || last < base)) counter.add((key - base) >> shift);
        });
        counter.flush();
        __syncthreads();
        find_bin<Threads>(scratch, need);
        base += scratch.bin << shift;
        need -= scratch.above;
        width = shift;
        if ((need == scratch.inside || (digits == 1 && width > 0)) && base > 0) return {base - 1, 0};
    }
    return {base, need};
}

}  // namespace smla::cuda
