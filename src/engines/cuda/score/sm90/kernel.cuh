// Device code of cuda_sm90_score; see kernel.cu.
#pragma once

#include "engines/cuda/score/sm90/keys.cuh"
#include "engines/cuda/score/sm90/queries.cuh"
#include "engines/cuda/score/sm90/wgmma.cuh"

namespace smla::cuda::sm90 {

// Multiplies a tile by a step's queries. `queries` is the low word of their descriptor; the high word is the
// same for all tiles, and a constant needs no registers.
template <class Shape>
__device__ inline void multiply(float (&bank)[Shape::columns / 2], const KeyOperand<Shape::products>& keys,
                                uint32_t queries) {
    const uint64_t high = k_major(0) >> 32 << 32;
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < KeyOperand<Shape::products>::steps; ++s) {
        const uint64_t b = high | (queries + (s / 4 * Shape::columns * 128 + s % 4 * 32) / 16);
        if constexpr (Shape::products == Products::e4m3) wgmma_e4m3(bank, keys.a[s], b, s > 0);
        else if constexpr (Shape::products == Products::f16) wgmma_half<Half::f16>(bank, keys.a[s], b, s > 0);
        else wgmma_half<Half::bf16>(bank, keys.a[s], b, s > 0);
    }
    wgmma_commit();
}

// Sets sums[i] to the sum for key g + 8 i over this thread's heads of query row `Row`.
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
            sums[key] = fmaf(w0, relu<Shape::products>(x0), i == kFirst ? 0.f : sums[key]);
            odd[key] = fmaf(w1, relu<Shape::products>(x1), i == kFirst ? 0.f : odd[key]);
        }
    }
    sums[0] += odd[0];
    sums[1] += odd[1];
}

// Sums over a quad of lanes, every key in the same order. Returns the sum for key g + 8 (t % 2) in lane 4 g +
// t, for the second row if t >= 2.
__device__ inline float finish(const float (&first)[2], const float (&second)[2]) {
    const bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
    float a = high ? second[0] : first[0], b = high ? second[1] : first[1];
    a += __shfl_xor_sync(~0u, high ? first[0] : second[0], 2);
    b += __shfl_xor_sync(~0u, high ? first[1] : second[1], 2);
    return (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
}

__device__ inline int64_t logit_at(const ScoreTask& task, int token, int column) {
    return token * task.logits.stride + (column - task.window.begin);
}

// Stores the logits of a lane's key if rows may not see the key, or if it may be masked.
struct EdgeLogits {
    const ScoreTask& task;
    const Window* windows;
    int token;        // first token of the block
    int first, last;  // rows
    int column;
    float factor;
    bool hole;

    template <int>
    __device__ void store(int row, float sum) {
        if (row < first || row >= last) return;
        const Window seen = windows[row];
        if (column < seen.begin || column >= seen.end) return;
        store_logit(task.logits, logit_at(task, token + row, column), hole ? -INFINITY : sum * factor);
    }
};
// Stores the logits of a key if all rows of all steps see all keys of the warp, none of them masked.
template <class Stored>
struct InsideLogits {
    const ScoreTask& task;
    char* next;  // address of the next store
    float factor;

    template <int Rows>  // between stores
    __device__ void store(int, float sum) {
        if constexpr (sizeof(Stored) == 4) *reinterpret_cast<float*>(next) = sum * factor;
        else *reinterpret_cast<uint16_t*>(next) = to_bf16(sum * factor);
        next += Rows == 2 ? task.two_strides : task.stride_bytes;
    }
};

template <class Shape, int Row = 0, class Out>
__device__ inline void store_step(const float (&bank)[Shape::columns / 2], const float4* weights, Out& out,
                                  int row) {
    float sums[2][2];
    add_heads<Shape, Row>(bank, weights, sums[0]);
    constexpr int kTwo = Shape::rows == 1 ? 1 : 2;
    if constexpr (kTwo == 2) add_heads<Shape, Row + 1>(bank, weights, sums[1]);
    const float sum = finish(sums[0], sums[kTwo - 1]);  // with one row, lanes t and t + 2 store the same
    out.template store<kTwo>(row + Row + (kTwo == 1 ? 0 : int(threadIdx.x % 4 / 2)), sum);
    if constexpr (kTwo == 2) {
        if constexpr (Row + 2 < Shape::rows) store_step<Shape, Row + 2>(bank, weights, out, row);
    }
}

// Rows [first, last) of a block, all of one request, and their tiles [tile, end).
struct Run {
    int first = 0, last = 0, tile = 0, end = 0;
    Window seen, common;  // columns that any row sees; columns that all rows see

    // Finds the next run; returns false if there is none.
    template <class Memory>
    __device__ bool next(const ScoreTask& task, const Memory& shared, int rows, int split) {
        while ((first = last) < rows) {
            for (last = first + 1; last < rows && shared.requests[last] == shared.requests[first];) ++last;
            seen = {INT32_MAX, 0}, common = {0, INT32_MAX};
            for (int row = first; row < last; ++row) {
                const Window window = shared.windows[row];
                common = {max(common.begin, window.begin), min(common.end, window.end)};
                if (window.begin < window.end)
                    seen = {min(seen.begin, window.begin), max(seen.end, window.end)};
            }
            if (seen.begin >= seen.end) continue;
            const int start = seen.begin / kKeys, tiles = (seen.end - 1) / kKeys + 1 - start;
            tile = start + int(task.by_splits.divide(uint64_t(tiles) * uint64_t(split)));
            end = start + int(task.by_splits.divide(uint64_t(tiles) * uint64_t(split + 1)));
            if (tile < end) return true;
        }
        return false;
    }
};

// A warpgroup, which multiplies every kGroups-th tile of a block.
template <class Shape>
class Consumer {
public:
    __device__ Consumer(const ScoreTask& task, typename Shape::Memory& shared, int token)
        : task_(task),
          shared_(shared),
          stages_(shared),
          token_(token),
          next_(threadIdx.x / 128),
          ahead_(int(next_)) {}

    // Requires the queries in shared memory.
    __device__ void multiply_tiles(const Run& run) {
        const bool whole = run.first % Shape::rows == 0 && run.last % Shape::rows == 0;
        Window& inside = shared_.inside[threadIdx.x / 32];
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            inside = {(run.common.begin + kKeys - 1) / kKeys, whole ? run.common.end / kKeys : 0};
        __syncwarp();
        first_step_ = __shfl_sync(~0u, run.first / Shape::rows, 0);
        last_step_ = __shfl_sync(~0u, (run.last - 1) / Shape::rows, 0);
        int tile = run.tile + ahead_;
        for (; tile < run.end; tile += kGroups, next_ += kGroups) {
            const bool within = inside.has(tile);
            const auto keys = take_keys(stages_, part_, next_);
            const int column = tile * kKeys + int(part_.own_key);
            // All warps of a warpgroup take the same branch, because all four must execute wgmma.
            if (!within || !keys.none_a_hole) {
                run_steps<EdgeLogits>(keys.operand, {task_, shared_.windows, token_, run.first, run.last,
                                                     column, keys.factor, keys.hole});
            } else if (task_.logits.bf16) {
                run_inside<uint16_t>(run.first, column, keys);
            } else {
                run_inside<float>(run.first, column, keys);
            }
        }
        ahead_ = tile - run.end;
    }

private:
    template <class Stored>
    __device__ void run_inside(int row, int column, const TakenKeys<Shape>& keys) {
        if (Shape::rows > 1) row += int(threadIdx.x % 4 / 2);
        auto* const logits = static_cast<Stored*>(task_.logits.data) + logit_at(task_, token_ + row, column);
        run_steps<InsideLogits<Stored>>(keys.operand, {task_, reinterpret_cast<char*>(logits), keys.factor});
    }
    template <class Out>
    __device__ void run_steps(const KeyOperand<Shape::products>& keys, Out out) {
        auto queries = uint32_t(k_major(shared_address(shared_.queries()) + first_step_ * Shape::step_bytes));
        const float4* weights = shared_.weights + first_step_ * (Shape::columns / 4) + threadIdx.x % 4;
        float bank[Shape::columns / 2];
        multiply<Shape>(bank, keys, queries);
        release_keys(stages_, next_);
        for (int step = first_step_;;) {
            wgmma_wait<0>();
            store_step<Shape>(bank, weights, out, step * Shape::rows);
            if (++step > last_step_) return;
            queries += Shape::step_bytes / 16;
            weights += Shape::columns / 4;
            multiply<Shape>(bank, keys, queries);
        }
    }

    const ScoreTask& task_;
    typename Shape::Memory& shared_;
    const KeyStages<Shape> stages_;
    const KeyPart<Shape> part_;
    const int token_;             // first token of the block
    uint32_t next_;               // number of the tile in the block
    int first_step_, last_step_;  // steps of a run, known to be equal in all lanes
    int ahead_;                   // next tile, relative to a run's first
};

template <class Shape>
__global__ void __launch_bounds__(kThreads, 1) score_sm90(const __grid_constant__ ScoreTask task) {
    extern __shared__ __align__(1024) char memory[];
    const int steps = (task.rows + Shape::rows - 1) / Shape::rows;
    auto& shared = *reinterpret_cast<typename Shape::Memory*>(memory);
    const int split = int(blockIdx.x / task.groups);  // concurrent blocks share keys in L2
    // the last tokens come first, because they see most columns in a causal prompt
    const int64_t token = int64_t(task.groups - 1 - blockIdx.x % task.groups) * task.rows;
    const int rows = int(min(int64_t(task.rows), task.tokens - token));
    const bool produces = int(threadIdx.x) >= kConsumers;
    const KeyStages<Shape> stages(shared);
    if (threadIdx.x == kConsumers) stages.start();
    if (int(threadIdx.x) < rows) {
        shared.windows[threadIdx.x] = task.window(token + threadIdx.x);
        shared.requests[threadIdx.x] = task.keys.place.request(token + threadIdx.x);
    }
    if (rows > 1 && !produces) prefetch_queries<Shape>(task, token, rows);
    if (task.fill) fill_outside<kThreads>(task.window, task.logits, token, rows, split, task.splits);
    __syncthreads();
    Run run;
    if (produces) {
        lower_registers<kProducerRegisters>();
        KeyProducer<Shape> producer(task, shared, stages);
        while (run.next(task, shared, rows, split))
            producer.copy(task.keys.place.pages_of(shared.requests[run.first]), run.seen, run.tile, run.end);
        return;
    }
    raise_registers<kConsumerRegisters>();
    load_queries<Shape>(task, shared, token, rows, steps);
    fence_async_proxy();
    named_barrier<kConsumers>(1);
    Consumer<Shape> consumer(task, shared, int(token));
    while (run.next(task, shared, rows, split)) consumer.multiply_tiles(run);
}

}  // namespace smla::cuda::sm90
