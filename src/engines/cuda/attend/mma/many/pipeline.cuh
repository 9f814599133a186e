// Pipeline of attend_many: stages and phases of the full/empty mbarriers of keys and of weights, and the
// synchronization of the queries.
#pragma once

#include "engines/cuda/attend/mma/many/config.h"
#include "engines/cuda/attend/mma/queries.cuh"
#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda_attend {

// Stage t % Count and phase parity t / Count % 2 of tile t in one register, or t if Count is a power of two.
template <int Count>
struct PipelineState {
    static constexpr bool counter = (Count & (Count - 1)) == 0;
    uint32_t state = 0;

    __device__ uint32_t stage() const { return state & (counter ? Count - 1 : 15); }
    __device__ uint32_t phase() const { return counter ? state / Count & 1 : state >> 4; }
    __device__ uint32_t advanced(uint32_t tiles) const {  // `tiles` is at most Count
        const uint32_t next = state + tiles;
        return counter || (next & 15) < Count ? next : (next - Count) ^ 16;
    }
};

// A stage of keys.
template <class T>
struct KeyStage : PipelineState<T::stages> {
    __device__ KeyStage after(uint32_t tiles) const { return {this->advanced(tiles)}; }
    __device__ uint32_t full(uint32_t base) const {
        return base + uint32_t(T::key_barriers_at) + sizeof(KeyBarriers) * this->stage();
    }
    __device__ uint32_t empty(uint32_t base) const { return full(base) + offsetof(KeyBarriers, empty); }
    __device__ uint32_t keys(uint32_t base) const { return base + this->stage() * T::keys_bytes; }
    __device__ uint32_t mask(uint32_t base) const {
        return base + uint32_t(T::masks_at) + 16 * this->stage();
    }
};

// Flags that a score warp publishes with its weights: accumulators must be rescaled; all keys are masked.
constexpr uint32_t kRescale = 1, kAllHoles = 2;

// A stage of weights.
template <class T>
struct WeightStage : PipelineState<T::weight_stages> {
    __device__ WeightStage after(uint32_t tiles) const { return {this->advanced(tiles)}; }
    __device__ WeightStage previous() const {
        return after(T::weight_stages - 1);
    }  // returns the previous stage with an undefined phase
    __device__ uint32_t full(uint32_t base) const {
        return base + uint32_t(T::weight_barriers_at) + sizeof(WeightBarriers) * this->stage();
    }
    __device__ uint32_t empty(uint32_t base) const { return full(base) + offsetof(WeightBarriers, empty); }
    // mbarrier: the next tile is scored. Value warps wait for it before they accumulate, so that their
    // products overlap the exchange and softmax of the score warps, not their products (64 heads: 9 %
    // faster).
    __device__ uint32_t scored(uint32_t base) const { return full(base) + offsetof(WeightBarriers, scored); }
    // Returns the address of 16-byte chunk c of head h, at c ^ (h / 4 & 1) of the head's 32 bytes: 8 rows
    // fall into 8 bank groups.
    __device__ uint32_t weights(uint32_t base, int head, int chunk) const {
        return base + uint32_t(T::weights_at + head * 32 + ((chunk ^ (head >> 2 & 1)) << 4)) +
               this->stage() * uint32_t(T::weights_bytes);
    }
    // Returns the address at which a lane of a score warp stores its weights of head lane / 4, keys 0 to 7.
    // Keys 8 to 15 are at ^ 16, head + 8 at + 256.
    __device__ uint32_t weights_of_lane(uint32_t base, uint32_t warp, uint32_t lane) const {
        return base + uint32_t(T::weights_at) + this->stage() * uint32_t(T::weights_bytes) + 512 * warp +
               (lane / 4 * 32 | (lane & 16) | lane % 4 * 4);
    }
    __device__ uint32_t factor(uint32_t base, int head) const {  // factor that rescales the accumulators
        return base + uint32_t(T::factors_at + 4 * head) + this->stage() * uint32_t(4 * T::heads);
    }
    static __device__ uint32_t output_factor(uint32_t base, int head) {
        return base + uint32_t(T::factors_at + 4 * (T::weight_stages * T::heads + head));
    }
    __device__ uint32_t flags(uint32_t base) const {  // one byte per score warp
        return base + uint32_t(T::flags_at) + 4 * this->stage();
    }
};

// Number of arrivals at `full` of a stage of keys: every copying thread, and one thread per row again when it
// has stored the row's byte of the mask. With decoded rows, each warp arrives once when it has decoded its
// rows.
template <class T>
constexpr int kCopyArrivals = T::decoded ? T::copy_lanes* T::keys / 32 : (T::copy_lanes + 1) * T::keys;

template <class T>
__device__ void init_barriers(uint32_t base) {
    KeyStage<T> keys;
    for (int i = 0; i < T::stages; ++i, keys = keys.after(1)) {
        cuda::mbarrier_init(keys.full(base), kCopyArrivals<T>);
        cuda::mbarrier_init(keys.empty(base), T::score_warps + T::value_warps);
    }
    WeightStage<T> weights;
    for (int i = 0; i < T::weight_stages; ++i, weights = weights.after(1)) {
        cuda::mbarrier_init(weights.full(base), T::score_warps);
        cuda::mbarrier_init(weights.empty(base), T::value_warps);
        cuda::mbarrier_init(weights.scored(base), T::score_warps);
        cuda::store_shared(weights.flags(base), 0u);
    }
}

// Arrives once for a warp, after the preceding accesses of all its lanes.
__device__ inline void arrive_as_warp(uint32_t barrier, uint32_t lane) {
    __syncwarp();
    if (lane == 0) cuda::mbarrier_arrive(barrier);
}

// Synchronization of the queries: value warps load them, score warps read them, and then tiles overwrite
// them.
template <class T>
using ManyQueries = QueryTile<T::width, T::query_rows>;
template <class T>
__device__ inline void signal_queries_loaded() {
    cuda::named_barrier_arrive<T::threads>(id(Barrier::queries_loaded));
}
template <class T>
__device__ inline void wait_queries_loaded() {
    cuda::named_barrier<T::threads>(id(Barrier::queries_loaded));
}
// Also waits for the other score warps, because spills overwrite queries.
template <class T>
__device__ inline void finish_queries_taken() {
    cuda::named_barrier_arrive<T::threads>(id(Barrier::queries_taken));
    cuda::named_barrier<32 * T::score_warps>(id(Barrier::score_warps));
}
template <class T>
__device__ inline void wait_queries_taken() {
    cuda::named_barrier<T::threads>(id(Barrier::queries_taken));
}

// Validity mask of the keys of a tile, one byte each.
struct Mask {
    uint4 bytes;
    __device__ explicit Mask(uint32_t at) : bytes(cuda::load_shared_4(at)) {}
    __device__ bool any() const { return bytes.x | bytes.y | bytes.z | bytes.w; }
    __device__ bool all() const { return (bytes.x & bytes.y & bytes.z & bytes.w) == 0x01010101; }
    // Returns bits of masked keys: bit 2 n + c for key 8 n + 2 * (lane % 4) + c.
    __device__ uint32_t holes(uint32_t lane) const {
        const uint32_t shift = 16 * (lane & 1);
        const uint32_t first = (lane & 2 ? bytes.y : bytes.x) >> shift;
        const uint32_t second = (lane & 2 ? bytes.w : bytes.z) >> shift;
        return ~((first & 1) | (first >> 7 & 2) | (second & 1) << 2 | (second >> 5 & 8));
    }
};

}  // namespace smla::cuda_attend
