// Loads the queries of attend on Hopper over raw records, as f16, in the order of the operands.
#pragma once

#include "engines/cuda/attend/sm90/raw/config.h"

namespace smla::cuda_attend::sm90::raw {

// Queries of a consumer warpgroup, or of both if they share the heads. A warp loads four heads at a time. A
// lane loads 16 of the first 512 columns of each head, and 8 of the last 64 columns of one head. A head is
// multiplied by the power of two that moves its largest value to between 2^14 and 2^15. Column 4 t + e of 16
// is element 2 t + e % 2 of chunk e / 2, so that the word of four codes that ldmatrix delivers to lane t of a
// key's four lanes becomes the lane's operands (consumer.cuh).
template <class Shape>
class Queries {
    using Group = GroupSmem<Shape>;
    static constexpr int kWarps = kWarpgroup / 32 * Shape::tile_groups;

public:
    // to: shared address of the queries. group: shared address of the first consumer warpgroup that uses
    // them. scale_log2: softmax scale times log2(e).
    __device__ Queries(const Arguments& args, uint32_t to, uint32_t group, int token, int head,
                       float scale_log2)
        : args_(args), to_(to), group_(group), token_(token), head_(head), scale_log2_(scale_log2) {}

    __device__ void load() const {
#pragma unroll 1
        for (int first = int(threadIdx.x / 32 % kWarps) * 4; first < Shape::heads; first += 4 * kWarps)
            load_four_heads(first);
        cuda::fence_async_proxy();
    }

private:
    static __device__ uint32_t lane() { return threadIdx.x % 32; }

    __device__ const uint16_t* row(int head) const {
        return static_cast<const uint16_t*>(args_.q.data) + cuda::element(args_.q, token_, head_ + head);
    }
    __device__ bool has_head(int head) const { return head_ + head < int(args_.q.shape[1]); }
    static __device__ uint4 load_16(const uint16_t* from, bool present) {
        return present ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
    }
    static __device__ uint32_t max_magnitude(uint32_t so_far, const uint4& words) {
        for (const uint32_t pair : {words.x, words.y, words.z, words.w})
            so_far = cuda::max_magnitude_bf16(so_far, pair);
        return so_far;
    }
    static __device__ uint32_t f16(uint32_t pair, float factor) {
        return cuda::pack_f16(__uint_as_float(pair << 16) * factor,
                              __uint_as_float(pair & 0xffff0000u) * factor);
    }

    __device__ void load_four_heads(int first) const {
        uint4 codes[4][2], last = {};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                codes[i][j] = load_16(row(first + i) + 16 * lane() + 8 * j, has_head(first + i));
        const int last_head = first + int(lane() / 8);
        if (kWide) last = load_16(row(last_head) + 512 + 8 * (lane() % 8), has_head(last_head));
        float of_last = 1;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool mine = lane() / 8 == uint32_t(i);
            uint32_t largest = max_magnitude(max_magnitude(0, codes[i][0]), codes[i][1]);
            if (kWide && mine) largest = max_magnitude(largest, last);
            // Biased exponent of at least 2^-100, because 2^14 / largest must be an f32.
            const uint32_t exponent =
                max(__reduce_max_sync(~0u, max(largest >> 16, largest & 0xffff)) >> 7, 27u);
            const float factor = __uint_as_float((127 + 14 + 127 - exponent) << 23);
            if (mine) of_last = factor;
            if (lane() == 0) {
                const float unit = __uint_as_float((exponent - 14) << 23) * scale_log2_;
                uint32_t to = unit_at<Shape>(group_, uint32_t(first + i));
#pragma unroll
                for (int g = 0; g < Shape::tile_groups; ++g, to += uint32_t(sizeof(Group)))
                    cuda::store_shared(to, unit), cuda::store_shared(to + kPeakAfterUnit, kNoPeak);
            }
            store_codes(first + i, codes[i], factor);
        }
        if (Shape::rope) store_rope(last_head, last, of_last);
        else if (kWide) store_last_codes(last_head, last, of_last);
    }
    __device__ void store_codes(int head, const uint4 (&codes)[2], float factor) const {
        const uint4 chunks[2] = {{f16(codes[0].x, factor), f16(codes[0].z, factor), f16(codes[1].x, factor),
                                  f16(codes[1].z, factor)},
                                 {f16(codes[0].y, factor), f16(codes[0].w, factor), f16(codes[1].y, factor),
                                  f16(codes[1].w, factor)}};
        const uint32_t to = to_ + lane() / 4 * uint32_t(Shape::query_tile);
        // Half of the lanes store the second chunk first, so that lanes use different banks.
#pragma unroll
        for (uint32_t j = 0; j < 2; ++j) {
            const bool second = (j ^ lane() / 4) & 1;
            cuda::store_shared(to + chunk_at(uint32_t(head), lane() % 4 * 2 + second),
                               second ? chunks[1] : chunks[0]);
        }
    }
    // Stores the lane's 8 of the last 64 columns.
    __device__ void store_last_codes(int head, const uint4& codes, float factor) const {
        const uint32_t chunk = lane() % 8 / 2 * 2, to = to_ + 8 * Shape::query_tile + lane() % 2 * 8;
        cuda::store_shared(to + chunk_at(uint32_t(head), chunk),
                           make_uint2(f16(codes.x, factor), f16(codes.z, factor)));
        cuda::store_shared(to + chunk_at(uint32_t(head), chunk + 1),
                           make_uint2(f16(codes.y, factor), f16(codes.w, factor)));
    }
    __device__ void store_rope(int head, const uint4& rope, float factor) const {
        const uint32_t pair = cuda::pack_bf16(factor, factor);
        cuda::store_shared(to_ + 8 * Shape::query_tile + chunk_at(uint32_t(head), lane() % 8),
                           make_uint4(cuda::times_bf16(rope.x, pair), cuda::times_bf16(rope.y, pair),
                                      cuda::times_bf16(rope.z, pair), cuda::times_bf16(rope.w, pair)));
    }

    static constexpr bool kWide = Shape::query_tiles == 9;
    const Arguments& args_;
    const uint32_t to_, group_;
    const int token_, head_;
    const float scale_log2_;
};

}  // namespace smla::cuda_attend::sm90::raw
