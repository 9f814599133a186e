// Consumer of attend on Hopper: two warpgroups compute scores, softmax and values for alternate tiles.
#pragma once

#include "engines/cuda/attend/sm90/config.h"
#include "engines/cuda/common/ptx/math.cuh"
#include "engines/cuda/common/ptx/mma.cuh"

namespace smla::cuda_attend::sm90 {

// Tile t (numbered through all tasks of the block) belongs to warpgroup t % 2, which computes its scores and
// weights. Both warpgroups add its values, each for half of the 512 columns. A lane has rows lane / 4 and
// lane / 4 + 8 of its warp's 16.
template <class Format, int Cluster>
class Consumer {
public:
    float o[128];  // sums of weights times values
    // Softmax state: the weight of a key is exp2(logit2 - peak2) with logit2 = product * scale_log2. Peaks
    // rise only if a weight would exceed 2^8.
    float peak2[2], largest[2];  // largest: largest product
    float sum[2];                // sums of the weights that this lane computed; -0.f: no key seen

    __device__ Consumer(uint32_t base, float scale)
        : base_(base),
          peer_(Cluster == 2 ? cuda::in_block(base, cuda::cluster_rank() ^ 1) - base : 0),
          group_(__shfl_sync(~0u, threadIdx.x / kWarpgroup,
                             0)),  // in a uniform register, because descriptors depend on it
          lane_(threadIdx.x % 32),
          row_(threadIdx.x % kWarpgroup / 32 * 16 + lane_ / 4),
          scale_(scale * (kLog2E / Format::key_factor)) {
#pragma unroll
        for (float& each : scale_log2_) each = scale_;
    }

    __device__ uint32_t group() const { return group_; }
    __device__ uint32_t lane() const { return lane_; }
    __device__ uint32_t row() const { return row_; }  // returns the lane's first row
    __device__ float scale_log2(int r) const { return scale_log2_[r]; }

    // Processes tiles [first, end) of a task. Once the queries of this task are read, the warpgroup that does
    // not own the last tile calls copy_next_queries().
    template <class Copy>
    __device__ void attend(uint32_t first, uint32_t end, const Copy& copy_next_queries) {
        begin();
        for (uint32_t tile = first + ((first ^ group_) & 1); tile < end; tile += 2) {
            float peak[2] = {-INFINITY, -INFINITY};
            score_half(tile, 0);
            if (tile > first) {
                add_others_values(tile - 1, peak);
                score_half(tile, 1);
                cuda::wgmma_wait<1>();
                release(tile - 1);
            } else {
                score_half(tile, 1);
            }
            const uint2 valid = cuda::load_shared_2(base_ + kValidAt + 8 * (tile & 1));
            cuda::wgmma_wait<0>();
            if (tile + 1 == end) cuda::named_barrier_arrive<kConsumers>(int(Barrier::queries_read));
            float added[2];
            const bool any = weigh(valid, peak, added);
            publish(tile, peak);
            rescale(peak);
            if (any) sum[0] += added[0], sum[1] += added[1];
            add_own_values(tile);
            cuda::wgmma_wait<0>();
            release(tile);
        }
        if ((end - 1 ^ group_) & 1) {
            float peak[2];
            cuda::named_barrier<kConsumers>(int(Barrier::queries_read));
            copy_next_queries();
            add_others_values(end - 1, peak);
            cuda::wgmma_wait<0>();
            release(end - 1);
        }
    }

private:
    __device__ void begin() {
#pragma unroll
        for (float& value : o) value = 0;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            peak2[r] = largest[r] = -INFINITY, sum[r] = -0.f;
            if constexpr (Format::f16)
                scale_log2_[r] =
                    scale_ * cuda::load_shared_f32(base_ + kQueryFactorAt + 4 * (row_ + 8 * uint32_t(r)));
        }
    }
    // Computes S (+)= Q K^T over one half of the columns; the second call adds the columns of rope.
    __device__ void score_half(uint32_t tile, uint32_t n) {
        const uint32_t stage = tile & 1, half = stage ^ n;
        cuda::mbarrier_wait(keys_full(base_, stage, half), tile >> 1 & 1);
        if (n == 1 && Format::early_rope) cuda::mbarrier_wait(rope_full(base_, tile), tile / 3 & 1);
        // Data copied by cp.async requires a proxy fence (kernel.cu).
        if (!Format::records || (n == 1 && Format::early_rope) || (half == 1 && Format::rope_tile < 8))
            cuda::fence_async_proxy();
        cuda::wgmma_fence();
        const uint32_t queries = base_ + kQueriesAt;
        score_tiles<4, Format::half>(queries + half * kHalfBytes,
                                     base_ + kKeysAt + stage * kStageBytes + half * kHalfBytes, n == 0);
        if (n == 1 && Format::rope)
            score_tiles<1, cuda::Half::bf16>(queries + 8 * kTileBytes, ring(tile), false);
        cuda::wgmma_commit();
    }
    template <uint32_t Tiles, cuda::Half Type>
    __device__ void score_tiles(uint32_t queries, uint32_t keys, bool overwrite) {
        const uint64_t q = cuda::k_major(queries), k = cuda::k_major(keys);
#pragma unroll
        for (uint32_t i = 0; i < 4 * Tiles; ++i) {
            const uint32_t at = i / 4 * kTileBytes + i % 4 * 32;
            cuda::wgmma_n64<Type>(s_, cuda::advanced(q, at), cuda::advanced(k, at), !overwrite || i != 0);
        }
    }
    // Converts the products to weights in p_. `peak` is the peak after the previous tile on entry and is
    // raised if needed. Returns false if the tile has no valid key.
    __device__ bool weigh(const uint2& words, float (&peak)[2], float (&added)[2]) {
        if ((words.x & words.y) != ~0u) mask(words);
        float most[2] = {s_[0], s_[2]}, scale[2] = {scale_log2_[0], scale_log2_[1]}, base[2];
#pragma unroll
        for (int i = 0; i < 16; ++i)
            most[i % 2] = cuda::max_nan(most[i % 2], cuda::max_nan(s_[2 * i], s_[2 * i + 1]));
#pragma unroll
        for (int step = 1; step <= 2; ++step)
#pragma unroll
            for (float& each : most) each = cuda::max_nan(each, __shfl_xor_sync(~0u, each, step));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            largest[r] = cuda::max_nan(largest[r], most[r]);
            const float most2 = most[r] * scale[r];
            if (!(most2 <= peak[r] + (8 + Format::peak_weight_log2)))  // true for NaN
                peak[r] = most2 - Format::peak_weight_log2;
            base[r] = peak[r] == -INFINITY ? 0.f : peak[r];
            added[r] = 0;
        }
        // An FMA does not round its product, so the largest logit does not cancel the peak exactly: the error
        // is 2^-24 times the peak. If this error is not small, products are rounded first.
        if (__any_sync(~0u, fmaxf(fabsf(base[0]), fabsf(base[1])) > 0x1p8f)) {
#pragma unroll
            for (int i = 0; i < 32; ++i) s_[i] *= scale[i / 2 % 2];
            scale[0] = scale[1] = 1;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float w[4];
#pragma unroll
            for (int e = 0; e < 4; ++e)
                w[e] = cuda::exp2_fast(__fmaf_rn(s_[4 * i + e], scale[e / 2], -base[e / 2]));
            added[0] += w[0] + w[1], added[1] += w[2] + w[3];
            p_[2 * i] = cuda::pack_half<Format::half>(w[0], w[1]);
            p_[2 * i + 1] = cuda::pack_half<Format::half>(w[2], w[3]);
        }
        return (words.x | words.y) != 0;
    }
    __device__ void mask(const uint2& words) {
        const uint32_t shift = 2 * (lane_ % 4);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t bits = (i < 4 ? words.x : words.y) >> shift >> (8 * (i % 4));
            if (!(bits & 1)) s_[4 * i] = s_[4 * i + 2] = -INFINITY;
            if (!(bits & 2)) s_[4 * i + 1] = s_[4 * i + 3] = -INFINITY;
        }
    }
    __device__ uint32_t ring(uint32_t tile) const { return base_ + kRingAt + tile % 3 * kTileBytes; }

    // Stores weights in the ring slot of the same tile's rope, which this warpgroup has read.
    __device__ void publish(uint32_t tile, const float (&peak)[2]) {
        const uint32_t row = row_ - lane_ / 4 + lane_ % 16, to = ring(tile);
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i)
            cuda::stmatrix_x4(to + chunk_at(row, 2 * i + lane_ / 16), p_ + 4 * i);
        if (lane_ % 4 == 0)
#pragma unroll
            for (uint32_t r = 0; r < 2; ++r)
                cuda::store_shared(base_ + kPeaksAt + 256 * (tile & 1) + 4 * (row_ + 8 * r), peak[r]);
        cuda::fence_async_proxy();
        cuda::named_barrier_arrive<kConsumers>(int(Barrier::weights) + int(tile & 1));
    }
    __device__ void rescale(const float (&peak)[2]) {
        if (!__any_sync(~0u, peak[0] != peak2[0] || peak[1] != peak2[1])) return;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float factor = peak[r] == peak2[r] ? 1.f : cuda::exp2_fast(peak2[r] - peak[r]);
#pragma unroll
            for (int i = 0; i < 32; ++i) o[4 * i + 2 * r] *= factor, o[4 * i + 2 * r + 1] *= factor;
            sum[r] *= factor;
            peak2[r] = peak[r];
        }
    }
    // Computes O += P V with the weights and peaks of the other warpgroup.
    __device__ void add_others_values(uint32_t tile, float (&peak)[2]) {
        cuda::named_barrier<kConsumers>(int(Barrier::weights) + int(tile & 1));
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r)
            peak[r] = cuda::load_shared_f32(base_ + kPeaksAt + 256 * (tile & 1) + 4 * (row_ + 8 * r));
        rescale(peak);
        const uint64_t p = cuda::k_major(ring(tile)), v = values(tile);
        cuda::wgmma_fence();
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i)
            cuda::wgmma_n256<Format::half>(o, cuda::advanced(p, 32 * i), cuda::advanced(v, 2048 * i));
        cuda::wgmma_commit();
    }
    __device__ void add_own_values(uint32_t tile) {
        const uint64_t v = values(tile);
        cuda::wgmma_fence();
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i)
            cuda::wgmma_n256<Format::half>(o, p_ + 4 * i, cuda::advanced(v, 2048 * i));
        cuda::wgmma_commit();
    }
    // Returns the descriptor of this warpgroup's half of the columns.
    __device__ uint64_t values(uint32_t tile) const {
        return cuda::n_major(base_ + kKeysAt + (tile & 1) * kStageBytes + group_ * kHalfBytes);
    }
    // Releases this warp's half of a tile's keys after its last read.
    __device__ void release(uint32_t tile) const {
        if (lane_ != 0) return;
        const uint32_t empty = keys_empty(base_, tile & 1, group_);
        cuda::mbarrier_arrive(empty);
        if constexpr (Cluster == 2) cuda::mbarrier_arrive_in_cluster(empty + peer_);
    }

    const uint32_t base_, peer_, group_, lane_, row_;
    const float scale_;
    float scale_log2_[2];  // scales of the lane's rows
    float s_[32];
    uint32_t p_[16];
};

}  // namespace smla::cuda_attend::sm90
