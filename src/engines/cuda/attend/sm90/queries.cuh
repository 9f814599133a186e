// Queries of attend on Hopper: 64 heads of a task, from global memory into wgmma's layout and type.
#pragma once

#include "engines/cuda/attend/sm90/config.h"
#include "engines/cuda/common/ptx/half.cuh"
#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda_attend::sm90 {

// Which columns of the 16 heads of its warp a lane copies, and where they lie. Eight lanes fill a row of a
// tile: otherwise the copies meet banks twice and take three times as long.
template <class Format>
struct QueryChunks {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32, rows;

    __device__ explicit QueryChunks(uint32_t base) : rows(base + kQueriesAt + 16 * warp * 128) {}
    // Eight of the first 256 columns, and of the next.
    __device__ uint32_t left_column() const { return 8 * (Format::permuted ? permuted() : lane); }
    __device__ uint32_t right_column() const {
        const bool natural = !Format::permuted || 256 + lane / 16 * 128 >= uint32_t(Format::natural_from);
        return 256 + 8 * (natural ? lane : permuted());
    }
    __device__ uint32_t left(uint32_t row) const {
        return rows + lane / 8 * kTileBytes + chunk_at(row, lane % 8);
    }
    __device__ uint32_t right(uint32_t row) const { return left(row) + kHalfBytes; }
    // Columns 512 + 8 * (lane % 8) and on, of lane / 8 of four rows.
    __device__ uint32_t rope(uint32_t row) const {
        return rows + 8 * kTileBytes + chunk_at(row + lane / 8, lane % 8);
    }

private:
    __device__ uint32_t permuted() const { return lane / 16 * 16 + lane % 8 * 2 + lane / 8 % 2; }
};

// One warpgroup starts to copy the queries of a task; zeros past the last head. Rows: that is all. Records:
// convert_queries follows.
template <class Format>
__device__ void copy_queries(const Arguments& args, const Task& task, uint32_t base) {
    const QueryChunks<Format> to(base);
    const int heads = int(args.q.shape[1]), first = task.head + int(16 * to.warp);
    const int64_t stride = args.q.stride_elems[1];
    const auto* const q =
        static_cast<const uint16_t*>(args.q.data) + cuda::element(args.q, task.token, first);
#pragma unroll 4
    for (uint32_t row = 0; row < 16; ++row) {
        const bool real = first + int(row) < heads;
        const uint16_t* const from = q + (real ? row : 0) * stride;
        cuda::cp_async_16(to.left(row), from + to.left_column(), real);
        cuda::cp_async_16(to.right(row), from + to.right_column(), real);
    }
#pragma unroll
    for (uint32_t row = 0; Format::rope && row < 16; row += 4) {
        const uint32_t own = row + to.lane / 8;
        const bool real = first + int(own) < heads;
        cuda::cp_async_16(to.rope(row), q + (real ? own : 0) * stride + 512 + 8 * (to.lane % 8), real);
    }
    if (!Format::records) cuda::mbarrier_arrive_after_copies(base + kQueriesFullAt);
}

__device__ inline void times_bf16(uint4& words, uint32_t factor) {
    words.x = cuda::times_bf16(words.x, factor), words.y = cuda::times_bf16(words.y, factor);
    words.z = cuda::times_bf16(words.z, factor), words.w = cuda::times_bf16(words.w, factor);
}
__device__ inline uint32_t bf16_to_f16(uint32_t pair, float factor) {
    return cuda::pack_f16(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xffff0000u) * factor);
}
__device__ inline void bf16_to_f16(uint4& words, float factor) {
    words.x = bf16_to_f16(words.x, factor), words.y = bf16_to_f16(words.y, factor);
    words.z = bf16_to_f16(words.z, factor), words.w = bf16_to_f16(words.w, factor);
}
// Of the eight bf16, in two halves.
__device__ inline uint32_t max_magnitude_bf16(const uint4& words) {
    return cuda::max_magnitude_bf16(cuda::max_magnitude_bf16(cuda::max_magnitude_bf16(0, words.x), words.y),
                                    cuda::max_magnitude_bf16(cuda::max_magnitude_bf16(0, words.z), words.w));
}

// Each thread of the copying warpgroup waits for what it has copied and converts it in place. bf16: columns
// of rope are multiplied by key_factor. f16: a head is multiplied by the power of two that brings its largest
// value between 2^14 and 2^15, which is exact but for values less than 2^-31 of it; rope as in bf16.
template <class Format>
class QueryConverter {
public:
    __device__ explicit QueryConverter(uint32_t base) : base_(base), at_(base) {}

    __device__ void run() const {
        cuda::cp_async_wait_all();
#pragma unroll 1
        for (uint32_t row = 0; row < 16; row += 4) {
            if constexpr (Format::f16) f16(row);
            else bf16(row);
        }
        cuda::fence_async_proxy();
    }

private:
    // In right_column().
    __device__ bool rope_to_the_right() const { return Format::rope_tile == 7 && at_.lane >= 24; }

    __device__ void bf16(uint32_t row) const {
        const uint32_t factor = cuda::pack_bf16(Format::key_factor, Format::key_factor);
        const auto convert = [&](uint32_t at) {
            uint4 words = cuda::load_shared_4(at);
            times_bf16(words, factor);
            cuda::store_shared(at, words);
        };
        if (Format::rope) convert(at_.rope(row));
        if (!rope_to_the_right()) return;
#pragma unroll 1
        for (uint32_t k = 0; k < 4; ++k) convert(at_.right(row + k));
    }
    __device__ void f16(uint32_t row) const {
        uint4 rope = {};
        if (Format::rope) rope = cuda::load_shared_4(at_.rope(row));
        const uint32_t rope_largest = max_magnitude_bf16(rope);
        uint32_t own = two_f16(row, 0, rope_largest);
        own = max(own, two_f16(row, 2, rope_largest));
        const float of_rope = factor(own) * Format::key_factor;
        times_bf16(rope, cuda::pack_bf16(of_rope, of_rope));
        if (Format::rope) cuda::store_shared(at_.rope(row), rope);
        if (at_.lane % 8 == 0)
            cuda::store_shared(base_ + kQueryFactorAt + 4 * (16 * at_.warp + row + at_.lane / 8),
                               __uint_as_float((own - 14) << 23));
    }
    // Heads row + first and the one after it, loaded together, so that loads wait once. Returns the exponent
    // of the head whose columns of rope this lane has, or 0.
    __device__ uint32_t two_f16(uint32_t row, uint32_t first, uint32_t rope_largest) const {
        uint4 left[2], right[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            left[i] = cuda::load_shared_4(at_.left(row + first + i));
            right[i] = cuda::load_shared_4(at_.right(row + first + i));
        }
        uint32_t exponent[2], own = 0;
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            const bool mine = at_.lane / 8 == first + i;
            const uint32_t most = cuda::max_magnitude_bf16(
                cuda::max_magnitude_bf16(max_magnitude_bf16(left[i]), max_magnitude_bf16(right[i])),
                mine ? rope_largest : 0);
            // biased; at least that of 2^-100, as 2^14 / largest must be an f32
            exponent[i] = max(__reduce_max_sync(~0u, max(most >> 16, most & 0xffff)) >> 7, 27u);
            if (mine) own = exponent[i];
        }
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            bf16_to_f16(left[i], factor(exponent[i])), bf16_to_f16(right[i], factor(exponent[i]));
            cuda::store_shared(at_.left(row + first + i), left[i]);
            cuda::store_shared(at_.right(row + first + i), right[i]);
        }
        return own;
    }
    static __device__ float factor(uint32_t exponent) {
        return __uint_as_float((127 + 14 + 127 - exponent) << 23);
    }

    const uint32_t base_;
    const QueryChunks<Format> at_;
};

template <class Format>
__device__ void convert_queries(uint32_t base) {
    QueryConverter<Format>(base).run();
    cuda::mbarrier_arrive(base + kQueriesFullAt);
}

// Both warpgroups ask for the queries of a task in L2, four threads a head.
template <class Format>
__device__ void prefetch_queries(const Arguments& args, const Task& task) {
    const int head = task.head + int(threadIdx.x / 4);
    if (head >= int(args.q.shape[1])) return;
    constexpr int kShare = Format::rope ? 144 : 128;  // values
    const auto* const q = static_cast<const uint16_t*>(args.q.data) +
                          cuda::element(args.q, task.token, head) + kShare * (threadIdx.x % 4);
#pragma unroll
    for (int at = 0; at < kShare; at += 64) asm volatile("prefetch.global.L2 [%0];" ::"l"(q + at));
}

// Both warpgroups wait for the queries of task `done` of the block.
inline __device__ void wait_for_queries(uint32_t base, uint32_t done) {
    cuda::mbarrier_wait(base + kQueriesFullAt, done & 1);
    cuda::fence_async_proxy();
}

}  // namespace smla::cuda_attend::sm90
