// Queries and weights of a block, copied to shared memory.
//
// Column c of step s is head c % heads of query row s * rows + c / heads. The order along k follows keys.cuh:
// lane 4 g + t multiplies 16-byte piece t of a key, for e4m3 also piece t + 4.
#pragma once

#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/score/sm90/config.h"

namespace smla::cuda::sm90 {

// Returns a 16-byte chunk of a wgmma tile, 128-byte swizzle.
__device__ inline uint32_t* tile_chunk(char* tile, int row, int chunk) {
    return reinterpret_cast<uint32_t*>(tile + row * 128 + ((chunk ^ (row & 7)) << 4));
}

template <class Shape, class Task>
__device__ inline const char* query_at(const Task& task, int64_t token, int head) {
    const int64_t value = element(task.q, token, head);
    return static_cast<const char*>(task.q.data) + (Shape::products == Products::bf16 ? value / 2 : value);
}

// Stores 16 bytes of codes, piece `piece` of a query. `scale` is the scale of e2m1 codes.
template <class Shape>
__device__ void place_piece(char* step, int column, int piece, const uint4& codes, uint32_t scale) {
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    if constexpr (Shape::products == Products::e4m3) {
#pragma unroll
        for (int i = 0; i < 4; ++i) tile_chunk(step, column, 4 * (piece / 4) + i)[piece % 4] = words[i];
        return;
    }
    constexpr int kSteps = Shape::products == Products::bf16 ? 8 : 4;  // steps of k
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
        uint32_t low, high;
        if constexpr (Shape::products == Products::bf16)
            e2m1_to_bf16(words[i / 2] >> (16 * (i % 2)), scale, low, high);
        else e4m3_to_f16(words[i], low, high);
        const int s = kSteps * (piece / 4) + i;
        char* const tile = step + s / 4 * (Shape::columns * 128);
        tile_chunk(tile, column, s % 4 * 2)[piece % 4] = low;
        tile_chunk(tile, column, s % 4 * 2 + 1)[piece % 4] = high;
    }
}

// Prefetches queries and weights before the keys are requested: behind 100 KB of keys per multiprocessor,
// queries take 8000 cycles to arrive.
template <class Shape>
__device__ inline void prefetch_queries(const ScoreTask& task, int64_t token, int rows) {
    const auto* const w = static_cast<const float*>(task.w.data);
    for (int i = int(threadIdx.x); i < rows * task.heads; i += kConsumers) {
        const int row = i / task.heads, head = i % task.heads;
        prefetch_line(query_at<Shape>(task, token + row, head));
        if (head % 32 == 0) prefetch_line(w + element(task.w, token + row, head));
    }
}

// Loads queries and weights in batches, so that loads overlap.
template <class Shape>
__device__ void load_queries(const ScoreTask& task, typename Shape::Memory& shared, int64_t token, int rows,
                             int steps) {
    // small batches, because instructions delay a single token
    constexpr int kPieces = Shape::code_bytes / 16, kBatch = Shape::stages == 4 ? 2 : 4;
    for (int i = int(threadIdx.x); i < steps * Shape::columns; i += kConsumers) {
        const int at = i % Shape::columns, step = i / Shape::columns;
        const int row = step * Shape::rows + at / Shape::heads, head = at % Shape::heads;
        float w = 0;
        if (row < rows && head < task.heads)
            w = kReluFactor<Shape::products> *
                __ldg(static_cast<const float*>(task.w.data) + element(task.w, token + row, head));
        // float4 [at/16][lane%4]: columns 2(lane%4) and + 1 of two n8-blocks
        float4* const four = shared.weights + (step * Shape::columns / 16 + at / 16) * 4 + at % 8 / 2;
        reinterpret_cast<float*>(four)[at / 8 % 2 * 2 + at % 2] = w;
    }
    const int pieces = steps * Shape::columns * kPieces;
    for (int first = int(threadIdx.x); first < pieces; first += kBatch * kConsumers) {
        uint4 codes[kBatch];
        uint32_t scales[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int at = first + i * kConsumers, piece = at % kPieces, column = at / kPieces;
            const int row = column / Shape::heads, head = column % Shape::heads;
            codes[i] = {};
            scales[i] = 0;
            if (row >= rows || head >= task.heads) continue;
            codes[i] =
                __ldg(reinterpret_cast<const uint4*>(query_at<Shape>(task, token + row, head)) + piece);
            if constexpr (Shape::products == Products::bf16)
                scales[i] = e8m0_to_bf16_pair(__ldg(static_cast<const uint8_t*>(task.q_scales.data) +
                                                    element(task.q_scales, token + row, head, piece)));
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int at = first + i * kConsumers, column = at / kPieces;
            if (at < pieces)
                place_piece<Shape>(shared.queries() + column / Shape::columns * Shape::step_bytes,
                                   column % Shape::columns, at % kPieces, codes[i], scales[i]);
        }
    }
}

}  // namespace smla::cuda::sm90
