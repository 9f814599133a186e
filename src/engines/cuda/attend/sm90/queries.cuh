// Queries of attend on Hopper: 64 heads of a task, from global memory into wgmma's layout.
#pragma once

#include "engines/cuda/attend/sm90/config.h"
#include "engines/cuda/common/ptx/half.cuh"
#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda_attend::sm90 {

// One warpgroup copies the queries of a task; zeros past the last head.
template <class Format>
__device__ void copy_queries(const Arguments& args, const Task& task, uint32_t base) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
    const int heads = int(args.q.shape[1]), first = task.head + int(16 * warp);
    const int64_t stride = args.q.stride_elems[1];
    const auto* const q =
        static_cast<const uint16_t*>(args.q.data) + cuda::element(args.q, task.token, first);
    const uint32_t to = base + kQueriesAt + 16 * warp * 128;
    // columns 8 * lane to 8 * lane + 7, and those 256 further
    const uint32_t tile = Format::permuted ? lane / 16 * 2 + lane % 2 : lane / 8,
                   chunk = Format::permuted ? lane / 2 % 8 : lane % 8;
#pragma unroll 4
    for (uint32_t row = 0; row < 16; ++row) {
        const bool real = first + int(row) < heads;
        const uint16_t* const from = q + (real ? row : 0) * stride + 8 * lane;
        const uint32_t at = to + tile * kTileBytes + chunk_at(row, chunk);
        const bool natural = Format::permuted && 256 + 8 * int(lane) >= Format::natural_from;
        const uint32_t right =
            natural ? to + (4 + lane / 8) * kTileBytes + chunk_at(row, lane % 8) : at + kHalfBytes;
        cuda::cp_async_16(at, from, real);
        cuda::cp_async_16(right, from + 256, real);
    }
#pragma unroll
    for (uint32_t row = lane / 8; Format::rope && row < 16; row += 4) {
        const bool real = first + int(row) < heads;
        cuda::cp_async_16(to + 8 * kTileBytes + chunk_at(row, lane % 8),
                          q + (real ? row : 0) * stride + 512 + 8 * (lane % 8), real);
    }
    cuda::mbarrier_arrive_after_copies(base + kQueriesFullAt);
}

// Both warpgroups wait for the queries of task `done` of the block.
template <class Format>
__device__ void wait_for_queries(uint32_t base, uint32_t done) {
    cuda::mbarrier_wait(base + kQueriesFullAt, done & 1);
    if constexpr (Format::shrink != 1) {
        const uint32_t factor = cuda::pack_bf16(Format::shrink, Format::shrink);
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            const uint32_t at =
                base + kQueriesAt + Format::rope_tile * kTileBytes + 16 * (threadIdx.x + kConsumers * i);
            uint4 four = cuda::load_shared_4(at);
            four.x = cuda::times_bf16(four.x, factor), four.y = cuda::times_bf16(four.y, factor);
            four.z = cuda::times_bf16(four.z, factor), four.w = cuda::times_bf16(four.w, factor);
            cuda::store_shared(at, four);
        }
    }
    cuda::fence_async_proxy();
    if constexpr (Format::shrink != 1) cuda::named_barrier<kConsumers>(int(Barrier::queries_scaled));
}

}  // namespace smla::cuda_attend::sm90
