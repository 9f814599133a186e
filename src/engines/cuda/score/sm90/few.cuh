// The device side of cuda_sm90_few_score; see few.cu.
#pragma once

#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/score/sm90/few_config.h"
#include "engines/cuda/score/sm90/kernel.cuh"

namespace smla::cuda::sm90 {

// Windows, requests and tiles of all tokens, by the threads that multiply. A thread takes whole groups.
template <class Shape>
__device__ void find_tiles(const FewTask& task, FewShared<Shape>& shared) {
    constexpr int kRows = Shape::rows;
    const int groups = (task.tokens + kRows - 1) / kRows;
    const int each = (groups + kConsumers - 1) / kConsumers * kRows;  // tokens
    const int first = int(threadIdx.x) * each, last = min(first + each, task.tokens);
    int tiles = 0;
    for (int token = first; token < last; ++token) {
        shared.windows[token] = task.window(token);
        const int64_t request = task.place.request(token);
        shared.requests[token] = request >= 0 && request < task.place.table.shape[0] ? int(request) : -1;
    }
    for (int token = first; token < last; ++token) {
        if (shared.leads(token)) tiles += shared.seen(token, task.tokens).tiles();
        shared.ends[token] = tiles;
    }
    int before = tiles;  // inclusive sum over the warp
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, before, step);
        if (int(threadIdx.x % 32) >= step) before += other;
    }
    if (threadIdx.x % 32 == 31) shared.sums[threadIdx.x / 32] = before;
    before -= tiles;
    named_barrier<kConsumers>(1);
    for (int warp = 0; warp < int(threadIdx.x / 32); ++warp) before += shared.sums[warp];
    for (int token = first; token < last; ++token) shared.ends[token] += before;
}

// The tiles of a block: equal shares of all.
struct Share {
    int begin, count;

    __device__ Share(const FewTask& task, int all) {
        begin = int(task.by_blocks.divide(uint64_t(all) * blockIdx.x));
        count = int(task.by_blocks.divide(uint64_t(all) * (blockIdx.x + 1))) - begin;
    }
};

// The warp that copies.
template <class Shape>
class FewProducer {
public:
    __device__ FewProducer(const FewTask& task, FewShared<Shape>& shared) : task_(task), shared_(shared) {}

    __device__ void run(const Share& share) {
        int token = first_unit(share.begin), done = 0;
        for (uint32_t n = 0; done < share.count; ++n, ++token) {
            token = next_unit(token, share.begin + done);
            const int before = token ? shared_.ends[token - 1] : 0, end = shared_.ends[token];
            const int from = share.begin + done - before;
            const int count = min(end - before - from, share.count - done);
            const Seen seen = shared_.seen(token, task_.tokens);
            announce(n, token, seen, seen.begin / kKeys + from, count);
            copy_keys(shared_.requests[token], seen.begin / kKeys + from, done, count);
            done += count;
        }
    }

private:
    __device__ static int lane() { return int(threadIdx.x % 32); }
    // Of 32 equal parts of all tokens, the first token of the part where `tile` is.
    __device__ int first_unit(int tile) const {
        const int step = (task_.tokens + 31) / 32, last = min((lane() + 1) * step, task_.tokens) - 1;
        return __popc(__ballot_sync(~0u, shared_.ends[last] <= tile)) * step;
    }
    // The first token from `token` on whose tiles end after `tile`.
    __device__ int next_unit(int token, int tile) const {
        for (;; token += 32) {
            const unsigned after =
                __ballot_sync(~0u, shared_.ends[min(token + lane(), task_.tokens - 1)] > tile);
            if (after) return token + __ffs(int(after)) - 1;
        }
    }
    // Queries, weights and windows of the n-th unit.
    __device__ void announce(uint32_t n, int token, const Seen& seen, int tile, int count) const {
        const uint32_t slot = n % kSlots;
        mbarrier_wait(shared_address(&shared_.unit_empty[slot]), (n / kSlots & 1) ^ 1);
        if (lane() == 0) {
            FewUnit& unit = shared_.units[slot];
            unit.token = token, unit.tile = tile, unit.count = count;
            for (int row = 0; row < Shape::rows; ++row)
                unit.windows[row] = row < seen.rows ? shared_.windows[token + row] : Window{};
            const uint32_t barrier = shared_address(&shared_.unit_full[slot]);
            mbarrier_arrive_expect(barrier, int(sizeof shared_.queries[slot]) + seen.rows * task_.heads * 4);
            copy_box(shared_address(shared_.queries[slot]), &task_.query_map, 0, token, barrier);
            for (int row = 0; row < seen.rows; ++row)
                copy_bulk(shared_address(&shared_.weights[slot][row * Shape::heads]),
                          static_cast<const float*>(task_.w.data) + element(task_.w, token + row),
                          task_.heads * 4, barrier);
        }
        __syncwarp();
    }
    __device__ void copy_keys(int request, int tile, int done, int count) const {
        const auto pages = task_.place.pages_of(request);
        int page = -1;
        for (int i = 0; i < count; ++i) {
            if (i % 32 == 0) {
                const uint32_t block = uint32_t(tile + i + lane()) >> task_.tiles_shift;
                page = -1;
                if (i + lane() < count && block < pages.count) page = __ldg(pages.blocks + block * pages.stride);
            }
            const int own = __shfl_sync(~0u, page, i % 32);
            const uint32_t stage = uint32_t(done + i) % kFewStages, turn = uint32_t(done + i) / kFewStages;
            mbarrier_wait(shared_address(&shared_.stages[stage].empty), (turn & 1) ^ 1);
            if (lane() == 0)
                copy_tile(shared_.stages[stage], own, uint32_t(tile + i) % (1u << task_.tiles_shift));
            __syncwarp();
        }
    }
    __device__ void copy_tile(FewStage& stage, int page, uint32_t part) const {
        const uint32_t barrier = shared_address(&stage.full);
        const bool comes = page >= 0 && page < task_.place.pages;
        stage.hole = !comes;
        mbarrier_arrive_expect(barrier, comes ? kKeys * (kWidth + kScaleBytes) : 0);
        if (!comes) return;
        copy_box(shared_address(stage.keys), &task_.key_map, int(part) * kKeys, page, barrier);
        const char* const scales = task_.data + page * task_.page_stride +
                                   layout::IndexFp8_132::scale_at(task_.place.page_tokens, part * kKeys);
        copy_bulk(shared_address(stage.scales), scales, kKeys * kScaleBytes, barrier);
    }

    const FewTask& task_;
    FewShared<Shape>& shared_;
};

// A warpgroup, which multiplies every kGroups-th tile of a block.
template <class Shape>
class FewConsumer {
    static constexpr int kStores = Shape::rows > 2 ? Shape::rows / 2 : 1;  // of a thread and tile

public:
    __device__ FewConsumer(const FewTask& task, FewShared<Shape>& shared)
        : task_(task),
          shared_(shared),
          group_(__shfl_sync(~0u, int(threadIdx.x / 128), 0)),
          last_(shared_address(shared.stages) + sizeof shared.stages),
          stage_(shared_address(shared.stages) + uint32_t(group_) * uint32_t(sizeof(FewStage))) {}

    __device__ void run(const Share& share) {
        int done = 0;
        for (uint32_t n = 0; done < share.count; ++n) {
            const uint32_t slot = n % kSlots;
            mbarrier_wait(shared_address(&shared_.unit_full[slot]), n / kSlots & 1);
            const FewUnit& unit = shared_.units[slot];
            const int count = unit.count, first = (group_ - done) & (kGroups - 1);
            if (first < count) {
                load_unit(unit, slot);
                int column = (tile_ + first) * kKeys + int(own_key_);
                for (int i = first; i < count; i += kGroups, column += kGroups * kKeys) multiply_tile(column);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared_.unit_empty[slot]));
            done += count;
        }
    }

private:
    __device__ void load_unit(const FewUnit& unit, uint32_t slot) {
        tile_ = unit.tile;
        queries_ = uint32_t(k_major(shared_address(shared_.queries[slot])));
#pragma unroll
        for (int i = 0; i < Shape::columns / 8; ++i) {
            const float2 two = *reinterpret_cast<const float2*>(
                &shared_.weights[slot][8 * i + threadIdx.x % 4 * 2]);
            weights_[2 * i] = kReluFactor<Products::e4m3> * two.x;
            weights_[2 * i + 1] = kReluFactor<Products::e4m3> * two.y;
        }
        const int64_t bytes = task_.logits.bf16 ? 2 : 4;
#pragma unroll
        for (int i = 0; i < kStores; ++i) {
            const int row = Shape::rows == 1 ? 0 : 2 * i + int(threadIdx.x % 4 / 2);
            windows_[i] = unit.windows[row];
            logits_[i] = static_cast<char*>(task_.logits.data) +
                         ((unit.token + row) * task_.logits.stride - task_.window.begin) * bytes;
        }
    }
    __device__ void multiply_tile(int column) {
        mbarrier_wait(stage_ + offsetof(FewStage, full), turn_);
        float bank[Shape::columns / 2];
        const uint64_t high = k_major(0) >> 32 << 32;
        const uint32_t keys = uint32_t(k_major(0)) + (stage_ >> 4);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; ++s) wgmma_e4m3(bank, high | (keys + 2 * s), high | (queries_ + 2 * s), s > 0);
        wgmma_commit();
        const float scale = load_shared_f32(stage_ + own_scale_);
        const bool hole = load_shared(stage_ + offsetof(FewStage, hole));
        wgmma_wait<0>();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(stage_ + offsetof(FewStage, empty));
        stage_ += kGroups * sizeof(FewStage);
        if (stage_ >= last_) {
            stage_ -= sizeof(FewStage) * kFewStages;
            turn_ ^= 1;
        }
#pragma unroll
        for (int i = 0; i < kStores; ++i) {
            float sums[2][2];
            constexpr int kTwo = Shape::rows == 1 ? 1 : 2;
            add(bank, 2 * i, sums[0]);
            if constexpr (kTwo == 2) add(bank, 2 * i + 1, sums[1]);
            const float sum = finish(sums[0], sums[kTwo - 1]);
            if (column >= windows_[i].begin && column < windows_[i].end) {
                const float logit = hole ? -INFINITY : sum * scale;
                if (task_.logits.bf16) reinterpret_cast<uint16_t*>(logits_[i])[column] = to_bf16(logit);
                else reinterpret_cast<float*>(logits_[i])[column] = logit;
            }
        }
    }
    // sums[i]: of key g + 8 i over this thread's heads of a row.
    __device__ void add(const float (&bank)[Shape::columns / 2], int row, float (&sums)[2]) const {
        const int first = row * Shape::heads / 8;
        float odd[2];
#pragma unroll
        for (int i = first; i < first + Shape::heads / 8; ++i) {
#pragma unroll
            for (int key = 0; key < 2; ++key) {
                const float x0 = bank[4 * i + 2 * key], x1 = bank[4 * i + 2 * key + 1];
                sums[key] = fmaf(weights_[2 * i], relu<Products::e4m3>(x0), i == first ? 0.f : sums[key]);
                odd[key] = fmaf(weights_[2 * i + 1], relu<Products::e4m3>(x1), i == first ? 0.f : odd[key]);
            }
        }
        sums[0] += odd[0];
        sums[1] += odd[1];
    }

    const FewTask& task_;
    FewShared<Shape>& shared_;
    const int group_;
    const uint32_t own_key_ =
        kept(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + threadIdx.x % 2 * 8);
    const uint32_t own_scale_ = kept(offsetof(FewStage, scales) + own_key_ * kScaleBytes);
    const uint32_t last_;
    uint32_t stage_, turn_ = 0;
    int tile_;
    uint32_t queries_;
    float weights_[Shape::columns / 4];
    Window windows_[kStores];
    char* logits_[kStores];
};

template <class Shape>
__global__ void __launch_bounds__(kThreads, 1) score_few_sm90(const __grid_constant__ FewTask task) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<FewShared<Shape>*>(memory);
    const bool produces = int(threadIdx.x) >= kConsumers;
    if (threadIdx.x == kConsumers) shared.start();
    if (!produces) {
        for (int i = int(threadIdx.x); i < kSlots * Shape::columns; i += kConsumers)
            (&shared.weights[0][0])[i] = 0;
        find_tiles<Shape>(task, shared);
        fence_async_proxy();
    }
    __syncthreads();
    const Share share(task, shared.ends[task.tokens - 1]);
    if (produces) {
        lower_registers<kProducerRegisters>();
        if (threadIdx.x < kConsumers + 32) FewProducer<Shape>(task, shared).run(share);
        return;
    }
    raise_registers<kConsumerRegisters>();
    if (task.fill) {
        const int pieces = task.tokens * task.fill_splits;
        for (int i = int(blockIdx.x); i < pieces; i += int(gridDim.x))
            fill_outside<kConsumers>(task.window, task.logits, i / task.fill_splits, 1, i % task.fill_splits,
                                     task.fill_splits);
    }
    FewConsumer<Shape>(task, shared).run(share);
}

}  // namespace smla::cuda::sm90
