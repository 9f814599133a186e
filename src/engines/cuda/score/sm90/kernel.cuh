// The device side of cuda_sm90_score; see kernel.cu.
#pragma once

#include "engines/cuda/score/sm90/keys.cuh"
#include "engines/cuda/score/sm90/queries.cuh"
#include "engines/cuda/score/sm90/wgmma.cuh"

namespace smla::cuda::sm90 {

// Products of a tile with the queries of a step.
template <class Shape>
__device__ inline void multiply(float (&bank)[Shape::columns / 2], const KeyOperand<Shape::products>& keys,
                                uint64_t queries) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < KeyOperand<Shape::products>::steps; ++s) {
        const uint64_t b = advanced(queries, s / 4 * Shape::columns * 128 + s % 4 * 32);
        if constexpr (Shape::products == Products::e4m3) {
            if (s == 0) wgmma_e4m3<false>(bank, keys.a[s], b);
            else wgmma_e4m3<true>(bank, keys.a[s], b);
        } else {
            if (s == 0) wgmma_f16<false>(bank, keys.a[s], b);
            else wgmma_f16<true>(bank, keys.a[s], b);
        }
    }
    wgmma_commit();
}

// sums[i]: of key g + 8 i over this thread's heads of query row `Row` of a step. relu(x) = (x + |x|) / 2
// avoids the low-rate FMNMX and keeps NaN; the weights contain the 1/2.
template <class Shape, int Row>
__device__ inline void add_heads(const float (&bank)[Shape::columns / 2], const float4* weights,
                                 float (&sums)[2]) {
    constexpr int kFirst = Row * Shape::heads / 8, kLast = kFirst + Shape::heads / 8;  // n8-blocks
    float odd[2];
    float4 four;
#pragma unroll
    for (int i = kFirst; i < kLast; ++i) {
        if (i == kFirst || i % 2 == 0) four = weights[i / 2 * 4];
        const float w0 = i % 2 ? four.z : four.x, w1 = i % 2 ? four.w : four.y;
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            const float x0 = bank[4 * i + 2 * key], x1 = bank[4 * i + 2 * key + 1];
            sums[key] = fmaf(w0, x0 + fabsf(x0), i == kFirst ? 0.f : sums[key]);
            odd[key] = fmaf(w1, x1 + fabsf(x1), i == kFirst ? 0.f : odd[key]);
        }
    }
    sums[0] += odd[0];
    sums[1] += odd[1];
}

// Sums over a quad of lanes, every key in the same order: lane 4 g + t gets that of key g + 8 (t % 2), of the
// second row if t >= 2.
__device__ inline float finish(const float (&first)[2], const float (&second)[2]) {
    const bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
    float a = high ? second[0] : first[0], b = high ? second[1] : first[1];
    a += __shfl_xor_sync(~0u, high ? first[0] : second[0], 2);
    b += __shfl_xor_sync(~0u, high ? first[1] : second[1], 2);
    return (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
}

// Stores the logits of a lane's key. Inside: all rows of all steps see all keys of the warp, none a hole.
template <bool Inside>
struct TileLogits;
template <>
struct TileLogits<false> {
    const Window* windows;
    float* logits;  // of the key, first row of the block
    int64_t stride;
    int first, last;  // rows
    int column;
    float factor;
    bool hole;

    __device__ void store(int row, float sum) {
        if (row < first || row >= last) return;
        const Window seen = windows[row];
        if (column < seen.begin || column >= seen.end) return;
        logits[row * stride] = hole ? -INFINITY : sum * factor;
    }
};
template <>
struct TileLogits<true> {
    const ScoreTask& task;
    char* next;  // of the key, the lane's row of the next store
    float factor;

    template <int Rows>  // between stores
    __device__ void store(float sum) {
        *reinterpret_cast<float*>(next) = sum * factor;
        next += Rows == 2 ? task.two_strides : task.stride_bytes;
    }
};

// The logits of the rows of a step, two at a time.
template <class Shape, bool Inside, int Row = 0>
__device__ inline void store_step(const float (&bank)[Shape::columns / 2], const float4* weights,
                                  TileLogits<Inside>& out, int row) {
    float sums[2][2];
    add_heads<Shape, Row>(bank, weights, sums[0]);
    constexpr int kTwo = Shape::rows == 1 ? 1 : 2;
    if constexpr (kTwo == 2) add_heads<Shape, Row + 1>(bank, weights, sums[1]);
    const float sum = finish(sums[0], sums[kTwo - 1]);  // of one row: lanes t and t + 2 store the same
    if constexpr (Inside) out.template store<kTwo>(sum);
    else out.store(row + Row + (kTwo == 1 ? 0 : int(threadIdx.x % 4 / 2)), sum);
    if constexpr (kTwo == 2) {
        if constexpr (Row + 2 < Shape::rows) store_step<Shape, Inside, Row + 2>(bank, weights, out, row);
    }
}

// Rows [first, last) of a block, all of one request, against a run of tiles, of which a warpgroup takes every
// kGroups-th.
template <class Shape>
class TileRun {
public:
    // Starts the copies of the first tiles. seen: what any row sees; common: what all of them do.
    __device__ TileRun(const ScoreTask& task, const Shared& shared, KeyRing<Shape::stages>& ring,
                       float* logits, int first, int last, const KeyColumns::Pages& pages, Window seen,
                       Window common, int tile, int end)
        : task_(task),
          shared_(shared),
          ring_(ring),
          logits_(logits),
          first_(first),
          last_(last),
          tile_(tile + warp_of_block() / 4) {
        const bool whole = first % Shape::rows == 0 && last % Shape::rows == 0;
        inside_ = {(common.begin + kKeys - 1) / kKeys, whole ? common.end / kKeys : 0};
        ring_.aim(pages, {seen.begin, int(min(int64_t(seen.end), int64_t(end) * kKeys))}, tile_, end);
    }

    // Queries have been loaded.
    __device__ void run() {
        for (; ring_.has(tile_); tile_ += kGroups) {
            // into the stage of the tile before
            ring_.fetch();
            KeyOperand<Shape::products> keys;
            ring_.take(keys);
            const int column = tile_ * kKeys + ring_.own_key();
            // All warps of a warpgroup take the same branch, as wgmma is one instruction of all four: in a
            // whole tile all keys are holes or none is.
            if (inside_.has(tile_) && ring_.whole(tile_) && !__any_sync(~0u, ring_.hole())) {
                const int row = Shape::rows == 1 ? first_ : first_ + int(threadIdx.x % 4 / 2);
                float* const logit = logits_ + row * task_.stride + column;
                run_steps<true>(keys, {task_, reinterpret_cast<char*>(logit), ring_.factor()});
            } else {
                run_steps<false>(keys, {shared_.windows, logits_ + column, task_.stride, first_, last_,
                                        column, ring_.factor(), ring_.hole()});
            }
        }
    }

private:
    template <bool Inside>
    __device__ void run_steps(const KeyOperand<Shape::products>& keys, TileLogits<Inside> out) {
        const int first_step = first_ / Shape::rows, last_step = (last_ - 1) / Shape::rows;
        uint64_t queries = k_major(shared_address(shared_.queries) + first_step * Shape::step_bytes);
        const float4* weights = shared_.weights + first_step * (Shape::columns / 4) + threadIdx.x % 4;
        for (int step = first_step; step <= last_step; ++step) {
            float bank[Shape::columns / 2];
            multiply<Shape>(bank, keys, queries);
            queries = advanced(queries, Shape::step_bytes);
            wgmma_wait<0>();
            store_step<Shape, Inside>(bank, weights, out, step * Shape::rows);
            weights += Shape::columns / 4;
        }
    }

    const ScoreTask& task_;
    const Shared& shared_;
    KeyRing<Shape::stages>& ring_;
    float* logits_;
    int first_, last_, tile_;
    Window inside_;  // tiles
};

template <class Shape>
__global__ void __launch_bounds__(kThreads, 2) score_sm90(const __grid_constant__ ScoreTask task) {
    extern __shared__ __align__(1024) char memory[];
    const int steps = (task.rows + Shape::rows - 1) / Shape::rows;
    const Shared shared = Shared::of(memory, Shape(), steps);
    const int split = int(blockIdx.x / task.groups);  // blocks that run at the same time share keys in L2
    // the last tokens first: in a causal prompt they see most columns
    const int64_t token = int64_t(task.groups - 1 - blockIdx.x % task.groups) * task.rows;
    const int rows = int(min(int64_t(task.rows), task.tokens - token));
    prefetch_queries(task, token, rows);
    KeyRing<Shape::stages> ring(task, shared);
    ring.start();
    if (task.fill)
        fill_outside<kThreads>(task.window, task.logits, task.stride, token, rows, split, task.splits);
    if (int(threadIdx.x) < rows) {
        shared.windows[threadIdx.x] = task.window(token + threadIdx.x);
        shared.requests[threadIdx.x] = task.keys.place.request(token + threadIdx.x);
    }
    __syncthreads();
    float* const logits = task.logits + token * task.stride - task.window.begin;
    bool loaded = false;
    for (int first = 0, last; first < rows; first = last) {
        for (last = first + 1; last < rows && shared.requests[last] == shared.requests[first];) ++last;
        Window all{INT32_MAX, 0}, common{0, INT32_MAX};
        for (int row = first; row < last; ++row) {
            const Window window = shared.windows[row];
            common = {max(common.begin, window.begin), min(common.end, window.end)};
            if (window.begin < window.end) all = {min(all.begin, window.begin), max(all.end, window.end)};
        }
        if (all.begin >= all.end) continue;
        const int64_t start = all.begin / kKeys, tiles = (all.end - 1) / kKeys + 1 - start;
        const int tile = int(start + tiles * split / task.splits);
        const int end = int(start + tiles * (split + 1) / task.splits);
        if (tile == end) continue;
        const KeyColumns::Pages pages = task.keys.place.pages_of(shared.requests[first]);
        TileRun<Shape> run(task, shared, ring, logits, first, last, pages, all, common, tile, end);
        if (!loaded) {
            load_queries<Shape>(task, shared, token, rows, steps);
            fence_async_proxy();
            __syncthreads();
            loaded = true;
        }
        run.run();
    }
}

}  // namespace smla::cuda::sm90
