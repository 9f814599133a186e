// Who may touch which memory of attend_many when: mbarriers of key buffers and of weights.
#pragma once

#include "engines/cuda_common/ptx/barrier.cuh"
#include "engines/cuda_common/ptx/shared.cuh"
#include "engines/cuda_mma/attend/tile.cuh"

namespace smla::cuda_attend {

// Tile t lies in buffer t % buffers, whose mbarriers are then in phase t / buffers: in one register, the
// buffer and, above it, the phase's parity.
template <class T>
struct Turn {
    uint32_t state = 0;

    __device__ uint32_t buffer() const { return state & 15; }
    __device__ uint32_t parity() const { return state >> 4; }
    __device__ Turn after(uint32_t tiles) const {  // at most `buffers`
        const uint32_t next = state + tiles;
        return {(next & 15) < T::buffers ? next : (next - T::buffers) ^ 16};
    }
    __device__ uint32_t full(uint32_t base) const { return base + uint32_t(T::barriers_at) + 16 * buffer(); }
    __device__ uint32_t empty(uint32_t base) const { return full(base) + 8; }
    __device__ uint32_t keys(uint32_t base) const { return base + buffer() * T::keys_bytes; }
    __device__ uint32_t mask(uint32_t base) const { return base + uint32_t(T::masks_at) + 16 * buffer(); }
};

// Weights of every tile with keys, in two places by turns.
template <class T>
struct WeightsTurn {
    uint32_t count = 0;  // of tiles with keys before

    __device__ void pass() { ++count; }
    __device__ uint32_t slot() const { return count & 1; }
    __device__ uint32_t parity() const { return count >> 1 & 1; }
    __device__ uint32_t full(uint32_t base) const {
        return base + uint32_t(T::barriers_at + 16 * T::buffers) + 16 * slot();
    }
    __device__ uint32_t empty(uint32_t base) const { return full(base) + 8; }
    // 32 bytes per head; 16-byte piece c of head h at c ^ (h / 4 & 1): 8 rows meet 8 different banks.
    __device__ uint32_t weights(uint32_t base, int head, int piece) const {
        return base + uint32_t(T::weights_at + head * 32 + ((piece ^ (head >> 2 & 1)) << 4)) +
               slot() * uint32_t(T::weights_bytes);
    }
    __device__ uint32_t factor(uint32_t base, int head) const {
        return base + uint32_t(T::factors_at + 4 * head) + slot() * uint32_t(4 * T::heads);
    }
    // Of the head's sums in the end.
    static __device__ uint32_t last_factor(uint32_t base, int head) {
        return base + uint32_t(T::factors_at + 4 * (2 * T::heads + head));
    }
    // A byte per score warp: whether factors are other than 1.
    __device__ uint32_t moved(uint32_t base) const { return base + uint32_t(T::moved_at) + 4 * slot(); }
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
    for (int i = 0; i < 2; ++i, weights.pass()) {
        cuda::mbarrier_init(weights.full(base), T::score_warps);
        cuda::mbarrier_init(weights.empty(base), T::value_warps);
        cuda::store_shared(weights.moved(base), 0u);
    }
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
