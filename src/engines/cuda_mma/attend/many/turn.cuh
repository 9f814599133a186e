// Who may touch which memory of attend_many when: mbarriers of key buffers and of weights.
#pragma once

#include "engines/cuda_common/ptx/barrier.cuh"
#include "engines/cuda_common/ptx/shared.cuh"
#include "engines/cuda_mma/attend/queries.cuh"
#include "engines/cuda_mma/attend/tile.cuh"

namespace smla::cuda_attend {

// Tile t has place t % Count, whose mbarriers are then in phase t / Count: in one register, the place and,
// above it, the phase's parity; or t itself.
template <int Count>
struct Ring {
    static constexpr bool counts = (Count & (Count - 1)) == 0;
    uint32_t state = 0;

    __device__ uint32_t place() const { return state & (counts ? Count - 1 : 15); }
    __device__ uint32_t parity() const { return counts ? state / Count & 1 : state >> 4; }
    __device__ uint32_t later(uint32_t tiles) const {  // at most Count
        const uint32_t next = state + tiles;
        return counts || (next & 15) < Count ? next : (next - Count) ^ 16;
    }
};

// Of the buffers of keys.
template <class T>
struct Turn : Ring<T::buffers> {
    __device__ Turn after(uint32_t tiles) const { return {this->later(tiles)}; }
    __device__ uint32_t full(uint32_t base) const {
        return base + uint32_t(T::barriers_at) + 16 * this->place();
    }
    __device__ uint32_t empty(uint32_t base) const { return full(base) + 8; }
    __device__ uint32_t keys(uint32_t base) const { return base + this->place() * T::keys_bytes; }
    __device__ uint32_t mask(uint32_t base) const {
        return base + uint32_t(T::masks_at) + 16 * this->place();
    }
};

// What a score warp says beside its weights, in a byte: that sums shrink first, that a tile without keys has
// no weights.
constexpr uint32_t kMoved = 1, kNoKeys = 2;

// Of the weights of tiles.
template <class T>
struct WeightsTurn : Ring<T::weights> {
    __device__ WeightsTurn after(uint32_t tiles) const { return {this->later(tiles)}; }
    __device__ WeightsTurn before() const { return after(T::weights - 1); }  // its place, not its parity
    __device__ uint32_t full(uint32_t base) const {
        return base + uint32_t(T::barriers_at + 16 * T::buffers) + 24 * this->place();
    }
    __device__ uint32_t empty(uint32_t base) const { return full(base) + 8; }
    // The products of the next tile are made. Value warps wait for it before they add: then theirs meet the
    // score warps' exchange and softmax, and not their products (64 heads: 9 % faster).
    __device__ uint32_t scored(uint32_t base) const { return full(base) + 16; }
    // 32 bytes per head; 16-byte piece c of head h at c ^ (h / 4 & 1): 8 rows meet 8 different banks.
    __device__ uint32_t weights(uint32_t base, int head, int piece) const {
        return base + uint32_t(T::weights_at + head * 32 + ((piece ^ (head >> 2 & 1)) << 4)) +
               this->place() * uint32_t(T::weights_bytes);
    }
    // Where a score warp's lane puts its weights of head lane / 4, keys 0 to 7; of the other 8 keys at ^ 16,
    // of head + 8 at + 256.
    __device__ uint32_t weights_of_lane(uint32_t base, uint32_t warp, uint32_t lane) const {
        static_assert(T::weights_at % 32 == 0);
        return base + uint32_t(T::weights_at) + this->place() * uint32_t(T::weights_bytes) + 512 * warp +
               (lane / 4 * 32 | (lane & 16) | lane % 4 * 4);
    }
    __device__ uint32_t factor(uint32_t base, int head) const {
        return base + uint32_t(T::factors_at + 4 * head) + this->place() * uint32_t(4 * T::heads);
    }
    // Of the head's sums in the end.
    static __device__ uint32_t last_factor(uint32_t base, int head) {
        return base + uint32_t(T::factors_at + 4 * (T::weights * T::heads + head));
    }
    // A byte per score warp.
    __device__ uint32_t news(uint32_t base) const { return base + uint32_t(T::news_at) + 4 * this->place(); }
};

// Every thread that copies a tile arrives, and one for each row a second time: that its entry of the mask is
// there.
template <class T>
constexpr int kCopyArrivals = (T::copy_lanes + 1) * T::keys;

template <class T>
__device__ void init_barriers(uint32_t base) {
    Turn<T> turn;
    for (int b = 0; b < T::buffers; ++b, turn = turn.after(1)) {
        cuda::mbarrier_init(turn.full(base), kCopyArrivals<T>);
        cuda::mbarrier_init(turn.empty(base), T::score_warps + T::value_warps);
    }
    WeightsTurn<T> weights;
    for (int i = 0; i < T::weights; ++i, weights = weights.after(1)) {
        cuda::mbarrier_init(weights.full(base), T::score_warps);
        cuda::mbarrier_init(weights.empty(base), T::value_warps);
        cuda::mbarrier_init(weights.scored(base), T::score_warps);
        cuda::store_shared(weights.news(base), 0u);
    }
}

// Queries have come, by way of buffers: value warps have brought them, score warps take them, and only then
// may tiles lie there.
template <class T>
using ManyQueries = QueryRows<T::width, T::query_rows>;
template <class T>
__device__ inline void queries_have_come() {
    cuda::named_barrier_arrive<T::threads>(8);
}
template <class T>
__device__ inline void wait_for_queries() {
    cuda::named_barrier<T::threads>(8);
}
template <class T>
__device__ inline void queries_are_taken() {  // by this warp; when it returns, by all score warps
    cuda::named_barrier_arrive<T::threads>(9);
    cuda::named_barrier<32 * T::score_warps>(10);
}
template <class T>
__device__ inline void wait_until_queries_are_taken() {
    cuda::named_barrier<T::threads>(9);
}

// Which keys of a tile are no holes: a byte each.
struct Mask {
    uint4 bytes;
    __device__ explicit Mask(uint32_t at) : bytes(cuda::load_shared_4(at)) {}
    __device__ bool any() const { return bytes.x | bytes.y | bytes.z | bytes.w; }
    __device__ bool all() const { return (bytes.x & bytes.y & bytes.z & bytes.w) == 0x01010101; }
    // Bit 2 n + c: key 8 n + 2 * (lane % 4) + c is a hole.
    __device__ uint32_t holes(uint32_t lane) const {
        const uint32_t shift = 16 * (lane & 1);
        const uint32_t first = (lane & 2 ? bytes.y : bytes.x) >> shift;
        const uint32_t second = (lane & 2 ? bytes.w : bytes.z) >> shift;
        return ~((first & 1) | (first >> 7 & 2) | (second & 1) << 2 | (second >> 5 & 8));
    }
};

// One arrival for a warp, after what all of its lanes have done.
__device__ inline void arrive_as_warp(uint32_t barrier, uint32_t lane) {
    __syncwarp();
    if (lane == 0) cuda::mbarrier_arrive(barrier);
}

}  // namespace smla::cuda_attend
