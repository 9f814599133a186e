// Queries, weights and windows of a block, to shared memory.
//
// Column c of step s is head c % Heads of query row s * (64 / Heads) + c / Heads. The order along k is that of
// keys.cuh: 16-byte piece t of a half of the key is what lane 4 g + t multiplies.
#pragma once

#include "engines/cuda/score/sm90/config.h"

namespace smla::cuda::sm90 {

// 16-byte chunk of a wgmma tile, 128-byte swizzle.
__device__ inline uint32_t* tile_chunk(char* tile, int row, int chunk) {
    return reinterpret_cast<uint32_t*>(tile + row * 128 + ((chunk ^ (row & 7)) << 4));
}

// Bytes 64 p + 16 t .. + 15 of a query.
template <Products P>
__device__ void place_piece(char* step, int column, int p, int t, const uint4& piece) {
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (P == Products::e4m3) {
            tile_chunk(step, column, 4 * p + i)[t] = words[i];
        } else {
            uint32_t low, high;
            e4m3_to_f16(words[i], low, high);
            char* const tile = step + p * kTileBytes;
            tile_chunk(tile, column, 2 * i)[t] = low;
            tile_chunk(tile, column, 2 * i + 1)[t] = high;
        }
    }
}

template <int Heads, Products P>
__device__ void load_queries(const ScoreTask& task, const Shared& shared, int64_t token, int rows, int steps) {
    constexpr int kRows = kColumns / Heads;
    const auto* const q = static_cast<const char*>(task.q.data);
#pragma unroll 4
    for (int i = int(threadIdx.x); i < steps * kColumns * 8; i += kThreads) {
        const int piece = i % 8, column = i / 8 % kColumns, step = i / (8 * kColumns);
        const int row = step * kRows + column / Heads, head = column % Heads;
        uint4 codes{};
        if (row < rows && head < task.heads)
            codes = __ldg(reinterpret_cast<const uint4*>(q + element(task.q, token + row, head, 16 * piece)));
        place_piece<P>(shared.queries + step * step_bytes(P), column, piece / 4, piece % 4, codes);
    }
    for (int i = int(threadIdx.x); i < steps * kColumns; i += kThreads) {
        const int column = i % kColumns, step = i / kColumns;
        const int row = step * kRows + column / Heads, head = column % Heads;
        float w = 0;
        if (row < rows && head < task.heads)
            w = 0.5f * __ldg(static_cast<const float*>(task.w.data) + element(task.w, token + row, head));
        // float4 [column/16][lane%4]: columns 2(lane%4) and + 1 of two n8-blocks
        const int at = (step * 4 + column / 16) * 4 + column % 8 / 2;
        reinterpret_cast<float*>(shared.weights + at)[column / 8 % 2 * 2 + column % 2] = w;
    }
    if (int(threadIdx.x) < rows) {
        shared.windows[threadIdx.x] = task.window(token + threadIdx.x);
        shared.requests[threadIdx.x] = task.keys.place.request(token + threadIdx.x);
    }
}

}  // namespace smla::cuda::sm90
