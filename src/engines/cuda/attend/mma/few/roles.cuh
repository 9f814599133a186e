// Roles of attend_few. Every warp performs all of them for each tile.
#pragma once

#include "engines/cuda/attend/mma/decoded_rows.cuh"
#include "engines/cuda/attend/mma/few/operands.cuh"
#include "engines/cuda/attend/mma/softmax.cuh"

#include <type_traits>

namespace smla::cuda_attend {

template <class T>
using FewTiles = KeyTiles<T::keys, T::row_slots>;
template <class T>
using WarpMma = std::conditional_t<T::coded, FewCodes<T>, FewRows<T>>;

// State that a warp keeps from tile to tile.
template <class T>
struct WarpState {
    const Arguments& args;
    char* const shared;
    Softmax<4, T::lift> softmax;
    WarpMma<T> mma;

    __device__ WarpState(const Arguments& args, char* shared)
        : args(args), shared(shared), softmax(args.scale() * (T::value_unit * kLog2E)), mma(shared) {}
    __device__ uint32_t keys(int stage) const {
        return cuda::shared_address(shared) + uint32_t(stage * T::keys_bytes);
    }
};

__device__ inline int warp_index() { return int(threadIdx.x) / 32; }

// Producer: starts the copies of a tile. Returns a mask in which bit k is set if key k is valid. Each lane
// looks up the row of one key, and 8 threads copy a row. With fp8, they receive its address from that lane by
// a shuffle (2.5 % faster; bf16: 1.6 % slower).
template <class T>
__device__ uint32_t load_tile(const FewTiles<T>& tiles, int tile, uint32_t keys) {
    if (tile >= tiles.count()) return 0;
    const BlockSource source = tiles.source(tile);  // all fields together, so that loads wait once
    const int key = int(threadIdx.x % 32);
    const BlockSource::Row row = tiles.row(tile, key, source);
    const uint32_t mask = __ballot_sync(~0u, row.valid);
    if (mask == 0) return 0;
    const auto record = reinterpret_cast<unsigned long long>(source.record(row));
    RawRecord raw;
    if constexpr (T::decoded) raw = RawRecord(source, row);
#pragma unroll
    for (int i = 0; i < T::rows_per_thread; ++i) {
        const uint32_t to = threadIdx.x / T::copy_lanes + uint32_t(i * (T::threads / T::copy_lanes));
        const uint32_t chunk = threadIdx.x % T::copy_lanes;
        const bool valid = mask >> to & 1;
        if constexpr (T::coded)
            copy_record<T::width, T::copy_lanes>(
                keys + to * T::pitch, reinterpret_cast<const char*>(__shfl_sync(~0u, record, int(to))),
                source.chunks, valid, chunk);
        else if constexpr (T::decoded)
            copy_raw_record(keys + to * T::pitch, to, source, raw.of_lane(int(to)), valid, chunk);
        else
            copy_row<T::width>(swizzled_at(keys, T::pitch, to, chunk),
                               source.record(tiles.row(tile, int(to), source)), valid, chunk);
    }
    if constexpr (T::coded)
        if (key / 8 == warp_index()) copy_scales(keys + uint32_t(key) * T::pitch, source, row);
    return mask;
}

// Producer: decodes the records that load_tile copied to bf16 rows. This thread's copies must be complete.
template <class T>
__device__ void decode_tile(const BlockSource& source, uint32_t keys) {
    constexpr uint32_t kRows = T::threads / T::copy_lanes;  // rows that are decoded together
    static_assert(T::copy_lanes == kDecodedLanes && kRows % 8 == 0);
    __syncwarp();  // makes the copies of all lanes of a row visible
    const uint32_t row = threadIdx.x / T::copy_lanes, lane = threadIdx.x % T::copy_lanes;
    const uint32_t first = keys + row * T::pitch;
    if (is_nvfp4(source)) {
#pragma unroll
        for (uint32_t i = 0; i < T::rows_per_thread; ++i)
            decode_row<Nvfp4Group, 4>(first + i * kRows * T::pitch, row, lane);
    } else {
#pragma unroll 1
        for (uint32_t i = 0; i < T::rows_per_thread; ++i)
            decode_row<Mxfp8Group, 2>(first + i * kRows * T::pitch, row, lane);
    }
}

// Score: sums the partial products of all warps through shared memory, in the same order in each warp.
template <class T>
__device__ void reduce_scores(float (&s)[4][4], float4* scores) {
    float4* const first = scores + cuda::keep(threadIdx.x % 32);
    float4* const own = first + warp_index() * 128;
#pragma unroll
    for (int n = 0; n < 4; ++n) own[32 * n] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        float4 sum = first[32 * n];
#pragma unroll
        for (int p = 1; p < T::warps; ++p) {
            const float4 other = first[p * 128 + 32 * n];
            sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
        }
        s[n][0] = sum.x, s[n][1] = sum.y, s[n][2] = sum.z, s[n][3] = sum.w;
    }
}

// Score and accumulate: processes one tile. Bit k of mask is set if key k is valid.
template <class T>
__device__ void attend_tile(WarpState<T>& warp, const typename WarpMma<T>::Kind& kind, int stage,
                            uint32_t mask) {
    float s[4][4], rescale[2];
    warp.mma.score(warp.keys(stage), kind, s);
    reduce_scores<T>(s, reinterpret_cast<float4*>(warp.shared + T::scores_at));
    if (mask != ~0u) {
        const uint32_t columns = mask >> (2 * (threadIdx.x % 4));
#pragma unroll
        for (int i = 0; i < 16; ++i)
            if (!(columns >> (8 * (i / 4) + i % 2) & 1)) s[i / 4][i % 4] = -INFINITY;
    }
    if (warp.softmax.update(s, rescale)) warp.mma.rescale(rescale);
    if (T::coded) warp.softmax.form_sums();
    warp.mma.accumulate(warp.keys(stage), kind, s);
}

// Processes all tiles of the block. Queries are loaded into the second stage of keys; afterwards, the copies
// of tile i + 1 run while tile i is multiplied.
template <class T>
__device__ void main_loop(WarpState<T>& warp, const WorkTile& work, const TileScheduler& scheduler) {
    auto& tile_list = *reinterpret_cast<typename T::TileList*>(warp.shared + T::tile_list_at);
    const QueryTile<T::width, T::query_rows> queries{warp.keys(1)};
    const uint32_t first_query = uint32_t(T::query_rows * warp_index());
    queries.fetch(warp.args, work, first_query);
    const FewTiles<T> tiles(warp.args, tile_list, work.token, work.split(scheduler), scheduler.by_splits);
    if (tiles.count() == 0) {
        cuda::cp_async_commit();
        cuda::cp_async_wait<0>();  // the epilogue will overwrite the queries
        return;
    }
    if (warp_index() < 3) tiles.fetch(warp_index(), int(threadIdx.x % 32));
    cuda::cp_async_commit();
    cuda::cp_async_wait<0>();
    __syncthreads();
    uint32_t mask = load_tile<T>(tiles, 0, warp.keys(0));
    cuda::cp_async_commit();
    const uint32_t largest = cuda::shared_address(warp.shared) + T::scores_at;
    if (T::coded) queries.scale(first_format(warp.args), first_query, largest);
    __syncthreads();  // all queries are loaded
    warp.mma.load_queries(queries, largest, warp.softmax.scale_log2);
    for (int i = 0; i < tiles.count(); ++i) {
        const int stage = i & 1;
        const typename WarpMma<T>::Kind kind(tiles.source(i));
        cuda::cp_async_wait<0>();
        if constexpr (T::decoded)
            if (mask) decode_tile<T>(tiles.source(i), warp.keys(stage));
        __syncthreads();  // tile i is complete, and no thread reads tile i - 1 any more
        const uint32_t next = load_tile<T>(tiles, i + 1, warp.keys(stage ^ 1));
        if (warp_index() == i % T::warps) tiles.fetch(i + 3, int(threadIdx.x % 32));
        cuda::cp_async_commit();
        if (mask) attend_tile<T>(warp, kind, stage, mask);
        mask = next;
    }
}

}  // namespace smla::cuda_attend
