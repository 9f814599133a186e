// Queries, weights and windows of a block, to shared memory.
//
// Column c of step s is head c % heads of query row s * rows + c / heads. The order along k is that
// of keys.cuh: 16-byte piece t of a half of the key is what lane 4 g + t multiplies.
#pragma once

#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/score/sm90/config.h"

namespace smla::cuda::sm90 {

// 16-byte chunk of a wgmma tile, 128-byte swizzle.
__device__ inline uint32_t* tile_chunk(char* tile, int row, int chunk) {
    return reinterpret_cast<uint32_t*>(tile + row * 128 + ((chunk ^ (row & 7)) << 4));
}

// Bytes 64 p + 16 t .. + 15 of a query.
template <class Shape>
__device__ void place_piece(char* step, int column, int p, int t, const uint4& piece) {
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (Shape::products == Products::e4m3) {
            tile_chunk(step, column, 4 * p + i)[t] = words[i];
        } else {
            uint32_t low, high;
            e4m3_to_f16(words[i], low, high);
            char* const tile = step + p * Shape::columns * 128;
            tile_chunk(tile, column, 2 * i)[t] = low;
            tile_chunk(tile, column, 2 * i + 1)[t] = high;
        }
    }
}

// Asks L2 for queries and weights before the keys are asked for: behind 100 KB of keys per multiprocessor
// queries take 8000 cycles to come. One token gains nothing by it.
__device__ inline void prefetch_queries(const ScoreTask& task, int64_t token, int rows) {
    const auto* const q = static_cast<const char*>(task.q.data);
    const auto* const w = static_cast<const float*>(task.w.data);
    for (int i = int(threadIdx.x); i < rows * task.heads; i += kConsumers) {
        const int row = i / task.heads, head = i % task.heads;
        prefetch_line(q + element(task.q, token + row, head));
        if (head % 32 == 0) prefetch_line(w + element(task.w, token + row, head));
    }
}

// kBatch steps at a time, so that their loads are under way together.
template <class Shape>
__device__ void load_queries(const ScoreTask& task, typename Shape::Memory& shared, int64_t token, int rows,
                             int steps) {
    constexpr int kPieces = kWidth / 16, kColumnsAtOnce = kConsumers / kPieces;
    constexpr int kEach = Shape::columns / kColumnsAtOnce, kBatch = 4 / kEach;
    const int piece = int(threadIdx.x) % kPieces, column = int(threadIdx.x) / kPieces;
    const auto* const q = static_cast<const char*>(task.q.data) + 16 * piece;
    for (int i = int(threadIdx.x); i < steps * Shape::columns; i += kConsumers) {
        const int at = i % Shape::columns, step = i / Shape::columns;
        const int row = step * Shape::rows + at / Shape::heads, head = at % Shape::heads;
        float w = 0;
        if (row < rows && head < task.heads)
            w = 0.5f * __ldg(static_cast<const float*>(task.w.data) + element(task.w, token + row, head));
        // float4 [at/16][lane%4]: columns 2(lane%4) and + 1 of two n8-blocks
        float4* const four = shared.weights + (step * Shape::columns / 16 + at / 16) * 4 + at % 8 / 2;
        reinterpret_cast<float*>(four)[at / 8 % 2 * 2 + at % 2] = w;
    }
    for (int step = 0; step < steps; step += kBatch) {
        uint4 codes[kBatch * kEach];
#pragma unroll
        for (int i = 0; i < kBatch * kEach; ++i) {
            const int at = column + i % kEach * kColumnsAtOnce;
            const int row = (step + i / kEach) * Shape::rows + at / Shape::heads, head = at % Shape::heads;
            const bool here = row < rows && head < task.heads;
            codes[i] = here ? __ldg(reinterpret_cast<const uint4*>(q + element(task.q, token + row, head)))
                            : uint4{};
        }
#pragma unroll
        for (int i = 0; i < kBatch * kEach; ++i)
            if (step + i / kEach < steps)
                place_piece<Shape>(shared.queries() + (step + i / kEach) * Shape::step_bytes,
                                   column + i % kEach * kColumnsAtOnce, piece / 4, piece % 4, codes[i]);
    }
}

}  // namespace smla::cuda::sm90
