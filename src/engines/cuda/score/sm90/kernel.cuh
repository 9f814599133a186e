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

// Ends a basic block, after `first` and `second` are computed; `zero` is 0. The compiler moves instructions
// within basic blocks only. Without this it spreads the products of a group over the epilogue beside them,
// and the epilogue waits for the tensor cores.
__device__ inline void end_block(uint32_t zero, float first = 0, float second = 0) {
    asm volatile(
        "{.reg .pred never;\n setp.ne.u32 never, %0, 0;\n"
        "AGAIN: @!never bra.uni PAST;\n st.shared.v2.f32 [%0], {%1, %2};\n bra.uni AGAIN;\n PAST:}" ::"r"(
            zero),
        "f"(first), "f"(second)
        : "memory");
}

// Stores the logits of a lane's key, row after row.
struct TileLogits {
    const Window* window;  // of the row
    float* logit;          // of this lane's key
    int64_t stride;
    int column;
    float factor;
    bool hole;

    // here: whether this is a row of the run. Goes on to the next row.
    __device__ void store(bool here, float sum) {
        const Window seen = *window++;
        const bool inside = uint32_t(column - seen.begin) < uint32_t(seen.end - seen.begin);
        if (here && inside) *logit = hole ? -INFINITY : sum * factor;
        logit += stride;
    }
};

// Rows [first, last) of a block, all of one request, against a run of tiles. While the tensor cores work on
// one bank, the epilogue of the other runs.
template <int Heads, Products P>
class TileRun {
    static constexpr int kRows = kColumns / Heads;

public:
    // Starts the loads of the first keys.
    __device__ TileRun(const ScoreTask& task, const Shared& shared, float* logits, int first, int last,
                       Window all, int tile, int end)
        : task_(task),
          shared_(shared),
          logits_(logits),
          first_(first),
          last_(last),
          tile_(tile),
          end_(end),
          // keys of the next split are not fetched
          rows_(task.keys, task.keys.place.pages_of(shared.requests[first]),
                {all.begin, min(all.end, end * kKeys)}) {
        rows_.look(tile);
        rows_.fetch();
        rows_.look(tile + 1);
    }

    // Queries have been loaded.
    __device__ void run() {
        const int first_step = first_ / kRows, last_step = (last_ - 1) / kRows;
        const uint64_t first_queries = k_major(shared_address(shared_.queries) + first_step * step_bytes(P));
        rows_.take(0, keys_[0], task_.zero);
        rows_.take(1, keys_[1], task_.zero);
        rows_.next();
        rows_.fetch();
        rows_.look(tile_ + 2);
        multiply(banks_[0], keys_[0], first_queries);
        for (; tile_ < end_; ++tile_) {
            const int column = rows_.own_column(tile_), row = first_step * kRows;
            TileLogits out{shared_.windows + row, logits_ + row * task_.stride + column,
                           task_.stride,          column,
                           rows_.factor(),        rows_.hole()};
            uint64_t queries = first_queries;
            for (int step = first_step; step < last_step; ++step) {
                const uint64_t next = advanced(queries, step_bytes(P));
                add_step<false>(out, step, queries, next);
                queries = next;
            }
            add_step<true>(out, last_step, queries, first_queries);
        }
        wgmma_wait<0>();
    }

private:
    // The products of the first bank with `queries` are under way. Last: of the tile; `next` are then for the
    // tile that follows.
    template <bool Last>
    __device__ void add_step(TileLogits& out, int step, uint64_t queries, uint64_t next) {
        const float4* const weights = shared_.weights + step * 16 + threadIdx.x % 4;
        float sums[2][kRows][2];
        end_block(task_.zero);
        start(1, queries);
        if constexpr (Last) rows_.take(0, keys_[0], task_.zero);
        add_heads<Heads>(banks_[0], weights, sums[0]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) end_block(task_.zero, sums[0][i][0], sums[0][i][1]);
        start(0, next);
        if constexpr (Last) rows_.take(1, keys_[1], task_.zero);
        add_heads<Heads>(banks_[1], weights, sums[1]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int row = step * kRows + i;
            out.store(row >= first_ && row < last_, finish(sums[0][i], sums[1][i]));
        }
        if constexpr (Last) {
            rows_.next();
            rows_.fetch();
            rows_.look(tile_ + 3);
        }
    }
    // Waits for the products under way and starts those of a bank.
    __device__ void start(int bank, uint64_t queries) {
        wgmma_wait<0>();
        multiply(banks_[bank], keys_[bank], queries);
        end_block(task_.zero);
    }

    const ScoreTask& task_;
    const Shared& shared_;
    float* logits_;
    int first_, last_, tile_, end_;
    KeyRows rows_;
    KeyOperand<P> keys_[2];
    float banks_[2][32];
};

template <int Heads, Products P>
__global__ void __launch_bounds__(kThreads, resident_blocks(P, Heads))
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
    if (int(threadIdx.x) < rows) {
        shared.windows[threadIdx.x] = task.window(token + threadIdx.x);
        shared.requests[threadIdx.x] = task.keys.place.request(token + threadIdx.x);
    }
    __syncthreads();
    float* const logits = task.logits + token * task.stride - task.window.begin;
    bool loaded = false;
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
        if (tile == end) continue;
        TileRun<Heads, P> run(task, shared, logits, first, last, all, tile, end);
        if (!loaded) {
            load_queries<Heads, P>(task, shared, token, rows, steps);
            fence_async_proxy();
            __syncthreads();
            loaded = true;
        }
        run.run();
    }
}

}  // namespace smla::cuda::sm90
