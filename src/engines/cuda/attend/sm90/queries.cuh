// Loads the queries of attend on Hopper: 64 heads of a task, from global memory into wgmma's layout and type.
#pragma once

#include "engines/cuda/attend/sm90/config.h"
#include "engines/cuda/common/ptx/half.cuh"
#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda_attend::sm90 {

// Columns of its warp's heads that a lane copies or converts, and their addresses. Eight lanes fill a row of
// a tile; otherwise the copies would have two-way bank conflicts and take three times as long.
template <class Format>
struct QueryChunks {
    // Recomputed at each use instead of kept, because registers are at their limit.
    uint32_t lane = cuda::keep(threadIdx.x) % 32, rows;

    // first: first head of the warp, a multiple of 8.
    __device__ QueryChunks(uint32_t base, uint32_t first) : rows(base + kQueriesAt + first * 128) {}
    // Return the first of the lane's eight columns among the first 256, and among the next 256.
    __device__ uint32_t left_column() const { return 8 * (Format::permuted ? permuted() : lane); }
    __device__ uint32_t right_column() const {
        const bool natural = !Format::permuted || 256 + lane / 16 * 128 >= uint32_t(Format::natural_from);
        return 256 + 8 * (natural ? lane : permuted());
    }
    __device__ uint32_t left(uint32_t row) const {
        return rows + lane / 8 * kTileBytes + chunk_at(row, lane % 8);
    }
    __device__ uint32_t right(uint32_t row) const { return left(row) + kHalfBytes; }
    // Returns the address of rope columns 8 * (lane % 8) to + 7, in row lane / 8 of four.
    __device__ uint32_t rope(uint32_t row) const {
        return rows + Format::rope_tile * kTileBytes + chunk_at(row + lane / 8, lane % 8);
    }

private:
    __device__ uint32_t permuted() const { return lane / 16 * 16 + lane % 8 * 2 + lane / 8 % 2; }
};

// Starts the copies of a task's queries by one warpgroup; rows after the last head are zeros. If keys are
// records, both warpgroups then convert the queries (convert_queries).
template <class Format>
__device__ void copy_queries(const Arguments& args, const Task& task, uint32_t base) {
    const uint32_t warp = threadIdx.x % kWarpgroup / 32;
    const QueryChunks<Format> to(base, 16 * warp);
    const int heads = int(args.q.shape[1]), first = task.head + int(16 * warp);
    const int64_t row_bytes = 2 * args.q.stride_elems[1];
    const char* const q = static_cast<const char*>(args.q.data) +
                          2 * cuda::element(args.q, task.token, first) + 2 * to.left_column();
    const char* from = q;
#pragma unroll
    for (uint32_t row = 0; row < 16; ++row, from += row_bytes) {
        const bool real = first + int(row) < heads;
        cuda::cp_async_16(to.left(row), from, real);
        cuda::cp_async_16(to.right(row), from + 2 * (to.right_column() - to.left_column()), real);
    }
    if (Format::rope) {
        const uint32_t own = to.lane / 8;
        from = q + own * row_bytes + 2 * (512 + 8 * (to.lane % 8) - to.left_column());
#pragma unroll
        for (uint32_t row = 0; row < 16; row += 4, from += 4 * row_bytes)
            cuda::cp_async_16(to.rope(row), from, first + int(row + own) < heads);
    }
    cuda::mbarrier_arrive_after_copies(base + (Format::records ? kQueriesCopiedAt : kQueriesFullAt));
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
// Returns the largest magnitudes of the eight bf16, one for each half of a word.
__device__ inline uint32_t max_magnitude_bf16(const uint4& words) {
    return cuda::max_magnitude_bf16(cuda::max_magnitude_bf16(cuda::max_magnitude_bf16(0, words.x), words.y),
                                    cuda::max_magnitude_bf16(cuda::max_magnitude_bf16(0, words.z), words.w));
}

// Converts queries in place; each of the eight warps converts eight heads. bf16: columns of rope are
// multiplied by key_factor. f16: a head is multiplied by the power of two that moves its largest value to
// between 2^14 and 2^15, which is exact except for values below 2^-31 of the largest; rope is as for bf16.
template <class Format>
class QueryConverter {
public:
    __device__ explicit QueryConverter(uint32_t base)
        : base_(base), first_(threadIdx.x / 32 * 8), at_(base, first_) {}

    __device__ void run() const {
#pragma unroll 1
        for (uint32_t row = 0; row < 8; row += 4) {
            if constexpr (Format::f16) f16(row);
            else bf16(row);
        }
        cuda::fence_async_proxy();
    }

private:
    static constexpr bool kRope = Format::rope || Format::rope_tile < 8;

    __device__ void bf16(uint32_t row) const {
        if (!kRope) return;
        uint4 words = cuda::load_shared_4(at_.rope(row));
        times_bf16(words, cuda::pack_bf16(Format::key_factor, Format::key_factor));
        cuda::store_shared(at_.rope(row), words);
    }
    // Converts four heads, which are loaded together so that loads wait once.
    __device__ void f16(uint32_t row) const {
        uint4 rope = {}, left[4], right[4];
        if (kRope) rope = cuda::load_shared_4(at_.rope(row));
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            left[i] = cuda::load_shared_4(at_.left(row + i));
            right[i] = cuda::load_shared_4(at_.right(row + i));
        }
        const uint32_t rope_largest = max_magnitude_bf16(rope);
        uint32_t exponent[4], own = 0;  // own: exponent of the head whose columns of rope this lane converts
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const bool mine = at_.lane / 8 == i;
            const uint32_t most = cuda::max_magnitude_bf16(
                cuda::max_magnitude_bf16(max_magnitude_bf16(left[i]), max_magnitude_bf16(right[i])),
                mine ? rope_largest : 0);
            // Biased exponent of at least 2^-100, because 2^14 / largest must be an f32.
            exponent[i] = max(__reduce_max_sync(~0u, max(most >> 16, most & 0xffff)) >> 7, 27u);
            own |= exponent[i] & (mine ? ~0u : 0u);  // a select would become an array in local memory
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            bf16_to_f16(left[i], factor(exponent[i])), bf16_to_f16(right[i], factor(exponent[i]));
            cuda::store_shared(at_.left(row + i), left[i]);
            cuda::store_shared(at_.right(row + i), right[i]);
        }
        const float of_rope = factor(own) * Format::key_factor;
        times_bf16(rope, cuda::pack_bf16(of_rope, of_rope));
        if (kRope) cuda::store_shared(at_.rope(row), rope);
        if (at_.lane % 8 == 0)
            cuda::store_shared(base_ + kQueryFactorAt + 4 * (first_ + row + at_.lane / 8),
                               __uint_as_float((own - 14) << 23));
    }
    static __device__ float factor(uint32_t exponent) {
        return __uint_as_float((127 + 14 + 127 - exponent) << 23);
    }

    const uint32_t base_, first_;
    const QueryChunks<Format> at_;
};

// Converts the queries of task `done` of the block after they have been copied. Called by both warpgroups.
template <class Format>
__device__ void convert_queries(uint32_t base, uint32_t done) {
    cuda::mbarrier_wait(base + kQueriesCopiedAt, done & 1);
    QueryConverter<Format>(base).run();
    cuda::mbarrier_arrive(base + kQueriesFullAt);
}

// Prefetches the queries of a task to L2, with four threads per head. Called by both warpgroups.
template <class Format>
__device__ void prefetch_queries(const Arguments& args, const Task& task) {
    const int head = task.head + int(threadIdx.x / 4);
    if (head >= int(args.q.shape[1])) return;
    constexpr int kShare = Format::rope ? 144 : 128;  // values per thread
    const auto* const q = static_cast<const uint16_t*>(args.q.data) +
                          cuda::element(args.q, task.token, head) + kShare * (threadIdx.x % 4);
#pragma unroll
    for (int at = 0; at < kShare; at += 64) asm volatile("prefetch.global.L2 [%0];" ::"l"(q + at));
}

// Waits for the queries of task `done` of the block. Called by both warpgroups.
inline __device__ void wait_for_queries(uint32_t base, uint32_t done) {
    cuda::mbarrier_wait(base + kQueriesFullAt, done & 1);
    cuda::fence_async_proxy();
}

}  // namespace smla::cuda_attend::sm90
