// The device side of cuda_sm90_score; see kernel.cu.
#pragma once

#include "engines/cuda/score/sm90/keys.cuh"
#include "engines/cuda/score/sm90/queries.cuh"
#include "engines/cuda/score/sm90/wgmma.cuh"

namespace smla::cuda::sm90 {

// Starts the products of a bank with the queries of a step; a group of wgmma of its own.
template <Products P>
__device__ inline void multiply(float (&bank)[32], const KeyOperand<P>& keys, uint64_t queries) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < KeyOperand<P>::steps; ++s) {
        const uint64_t b = advanced(queries, s / 4 * kTileBytes + s % 4 * 32);
        if constexpr (P == Products::e4m3) {
            if (s == 0) wgmma_e4m3<false>(bank, keys.a[s], b);
            else wgmma_e4m3<true>(bank, keys.a[s], b);
        } else {
            if (s == 0) wgmma_f16<false>(bank, keys.a[s], b);
            else wgmma_f16<true>(bank, keys.a[s], b);
        }
    }
    wgmma_commit();
}

// sums[row][i]: over this thread's heads of a bank, key g + 8 i. relu(x) = (x + |x|) / 2 avoids the low-rate
// FMNMX and keeps NaN; the weights contain the 1/2.
template <int Heads>
__device__ inline void add_heads(const float (&bank)[32], const float4* weights,
                                 float (&sums)[kColumns / Heads][2]) {
    float odd[kColumns / Heads][2];
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
        const int row = i * 8 / Heads;
        const float4 four = weights[i / 2 * 4];
        const float w0 = i % 2 ? four.z : four.x, w1 = i % 2 ? four.w : four.y;
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            const float x0 = bank[4 * i + 2 * key], x1 = bank[4 * i + 2 * key + 1];
            const bool first = i * 8 % Heads == 0;
            sums[row][key] = fmaf(w0, x0 + fabsf(x0), first ? 0.f : sums[row][key]);
            odd[row][key] = fmaf(w1, x1 + fabsf(x1), first ? 0.f : odd[row][key]);
        }
    }
#pragma unroll
    for (int row = 0; row < kColumns / Heads; ++row)
#pragma unroll
        for (int key = 0; key < 2; ++key) sums[row][key] += odd[row][key];
}

// Sums over a quad of lanes: lane 4 g + t gets that of key g + 8 t, every key in the same order.
__device__ inline float finish(const float (&first)[2], const float (&second)[2]) {
    const bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
    float a = high ? second[0] : first[0], b = high ? second[1] : first[1];
    a += __shfl_xor_sync(~0u, high ? first[0] : second[0], 2);
    b += __shfl_xor_sync(~0u, high ? first[1] : second[1], 2);
    return (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
}

// Rows [first, last) of a block, all of one request, against tiles [tile, end) of the columns in `all`.
template <int Heads, Products P>
__device__ void score_tiles(const ScoreTask& task, const Shared& shared, float* logits, int first, int last,
                            Window all, int tile, int end) {
    constexpr int kRows = kColumns / Heads;
    const int first_step = first / kRows, last_step = (last - 1) / kRows;
    const KeyColumns::Pages pages = task.keys.place.pages_of(shared.requests[first]);
    const uint64_t first_queries = k_major(shared_address(shared.queries) + first_step * step_bytes(P));
    const float4* const weights = shared.weights + threadIdx.x % 4;

    all.end = min(all.end, end * kKeys);  // keys of the next split are not fetched
    KeyRows rows(task.keys, pages, all);
    KeyOperand<P> keys[2];
    float banks[2][32];
    rows.look(tile);
    rows.fetch();
    rows.look(tile + 1);
    rows.take(0, keys[0]);
    rows.take(1, keys[1]);
    rows.next();
    rows.fetch();
    rows.look(tile + 2);
    multiply(banks[0], keys[0], first_queries);
    for (; tile < end; ++tile) {
        uint64_t queries = first_queries;
        for (int step = first_step; step <= last_step; ++step) {
            const bool over = step == last_step;
            float sums[2][kRows][2];
            wgmma_wait<0>();
            multiply(banks[1], keys[1], queries);
            add_heads<Heads>(banks[0], weights + step * 16, sums[0]);
            if (over) rows.take(0, keys[0]);
            queries = over ? first_queries : advanced(queries, step_bytes(P));
            wgmma_wait<0>();
            multiply(banks[0], keys[0], queries);
            add_heads<Heads>(banks[1], weights + step * 16, sums[1]);
            if (over) rows.take(1, keys[1]);

            const int column = rows.own_column(tile);
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                const int row = step * kRows + i;
                const float sum = finish(sums[0][i], sums[1][i]);
                if (row < first || row >= last || !shared.windows[row].has(column)) continue;
                logits[row * task.stride + column] = rows.hole() ? -INFINITY : sum * rows.factor();
            }
            if (over) {
                rows.next();
                rows.fetch();
                rows.look(tile + 3);
            }
        }
    }
    wgmma_wait<0>();
}

template <int Heads, Products P>
__global__ void __launch_bounds__(kThreads, resident_blocks(P))
    score_sm90(const __grid_constant__ ScoreTask task) {
    extern __shared__ __align__(1024) char memory[];
    constexpr int kRows = kColumns / Heads;
    const int steps = (task.rows + kRows - 1) / kRows;
    const Shared shared(memory, P, steps, task.rows);
    const int split = int(blockIdx.x / task.groups);  // blocks that run at the same time share keys in L2
    // the last tokens first: in a causal prompt they see most columns
    const int64_t token = int64_t(task.groups - 1 - blockIdx.x % task.groups) * task.rows;
    const int rows = int(min(int64_t(task.rows), task.tokens - token));
    if (task.fill)
        fill_outside<kThreads>(task.window, task.logits, task.stride, token, rows, split, task.splits);
    load_queries<Heads, P>(task, shared, token, rows, steps);
    fence_async_proxy();
    __syncthreads();
    float* const logits = task.logits + token * task.stride - task.window.begin;
    for (int first = 0, last; first < rows; first = last) {
        for (last = first + 1; last < rows && shared.requests[last] == shared.requests[first];) ++last;
        Window all{INT32_MAX, 0};
        for (int row = first; row < last; ++row) {
            const Window window = shared.windows[row];
            if (window.begin < window.end) all = {min(all.begin, window.begin), max(all.end, window.end)};
        }
        if (all.begin >= all.end) continue;
        const int64_t start = all.begin / kKeys, tiles = (all.end - 1) / kKeys + 1 - start;
        const int tile = int(start + tiles * split / task.splits);
        const int end = int(start + tiles * (split + 1) / task.splits);
        if (tile < end) score_tiles<Heads, P>(task, shared, logits, first, last, all, tile, end);
    }
}

}  // namespace smla::cuda::sm90
