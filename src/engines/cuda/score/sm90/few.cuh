// The device side of cuda_sm90_few_score; see few.cu.
#pragma once

#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/score/sm90/few_config.h"
#include "engines/cuda/score/sm90/kernel.cuh"
#include "engines/cuda/score/sm90/queries.cuh"

namespace smla::cuda::sm90 {

// Windows, requests and tiles of all tokens, by the threads that multiply. A thread takes whole groups.
template <class Shape>
__device__ void find_tiles(const FewTask& task, FewShared<Shape>& shared) {
    const int groups = (task.tokens + Shape::rows - 1) / Shape::rows;
    const int each = (groups + kConsumers - 1) / kConsumers * Shape::rows;  // tokens
    const int first = int(threadIdx.x) * each, last = min(first + each, task.tokens);
    for (int token = first; token < last; ++token) {
        const int64_t request = task.place.request(token);
        shared.windows[token] = task.window(token);
        shared.requests[token] = request >= 0 && request < task.place.table.shape[0] ? int(request) : -1;
    }
    int own = 0;
    for (int token = first; token < last; ++token) {
        if (shared.leads(token)) own += shared.seen(token, task.tokens).tiles();
        shared.ends[token] = own;
    }
    int before = own;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, before, step);
        if (int(threadIdx.x % 32) >= step) before += other;
    }
    if (threadIdx.x % 32 == 31) shared.sums[threadIdx.x / 32] = before;
    named_barrier<kConsumers>(1);
    const bool earlier = threadIdx.x % 32 < threadIdx.x / 32;  // that warp
    before += __reduce_add_sync(~0u, earlier ? shared.sums[threadIdx.x % 32] : 0) - own;
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

// The units of a block one after the other: consecutive rows of one request, and which of their tiles are the
// block's. By whole warps.
template <class Shape>
class Units {
public:
    __device__ Units(const FewTask& task, const FewShared<Shape>& shared, const Share& share)
        : tokens_(task.tokens), shared_(shared), share_(share), token_(first_token()) {}

    // done: tiles of the block before this unit.
    int token = 0, tile = 0, count = 0, done = 0;
    Seen seen;

    // The unit after this one; false: there is none.
    __device__ bool next() {
        done += count;
        if (done >= share_.count) return false;
        token = token_with(token_, share_.begin + done);
        token_ = token + 1;
        const int before = token ? shared_.ends[token - 1] : 0, end = shared_.ends[token];
        const int from = share_.begin + done - before;
        seen = shared_.seen(token, tokens_);
        tile = seen.begin / kKeys + from;
        count = min(end - before - from, share_.count - done);
        return true;
    }

private:
    __device__ static int lane() { return int(threadIdx.x % 32); }
    // Of 32 equal parts of all tokens, the first token of the part with the block's first tile.
    __device__ int first_token() const {
        const int step = (tokens_ + 31) / 32, last = min((lane() + 1) * step, tokens_) - 1;
        return __popc(__ballot_sync(~0u, shared_.ends[last] <= share_.begin)) * step;
    }
    // The first token from `token` on whose tiles end after `tile`.
    __device__ int token_with(int token, int tile) const {
        for (;; token += 32) {
            const unsigned after = __ballot_sync(~0u, shared_.ends[min(token + lane(), tokens_ - 1)] > tile);
            if (after) return token + __ffs(int(after)) - 1;
        }
    }

    const int tokens_;
    const FewShared<Shape>& shared_;
    const Share share_;
    int token_;
};

// Asks L2 for the part of the block table where the block's tiles are if all tokens see all columns. By a
// warp.
__device__ inline void prefetch_table(const FewTask& task) {
    const float at = float(task.tokens) * float(blockIdx.x) / float(gridDim.x);
    const auto pages = task.place.pages_of(task.place.request(int(at)));
    const float share = at - floorf(at);
    const uint32_t block = uint32_t(share * float(pages.count)) + threadIdx.x % 32 * 32;
    if (block < pages.count) prefetch_line(pages.blocks + block * pages.stride);
}

// Asks L2 for queries and their scales, a head per lane. By a warp.
template <class Shape>
__device__ void prefetch_mxfp4_queries(const FewTask& task, int token, int rows) {
    for (int i = int(threadIdx.x % 32); i < rows * Shape::heads; i += 32) {
        const int row = token + i / Shape::heads, head = i % Shape::heads;
        prefetch_line(query_at<Shape>(task, row, head));
        prefetch_line(static_cast<const char*>(task.q_scales.data) + element(task.q_scales, row, head));
    }
}

// The warp that copies queries and weights, and tells those that multiply which unit comes next.
template <class Shape>
__device__ void announce_units(const FewTask& task, FewShared<Shape>& shared, const Share& share) {
    Units<Shape> units(task, shared, share);
    for (uint32_t n = 0; units.next(); ++n) {
        const uint32_t slot = n % kSlots;
        const int rows = units.seen.rows;
        if constexpr (Shape::mxfp4) prefetch_mxfp4_queries<Shape>(task, units.token, rows);
        mbarrier_wait(shared_address(&shared.unit_empty[slot]), (n / kSlots & 1) ^ 1);
        if (threadIdx.x % 32 == 0) {
            FewUnit& unit = shared.units[slot];
            unit.token = units.token, unit.tile = units.tile, unit.count = units.count;
            for (int row = 0; row < Shape::rows; ++row)
                unit.windows[row] = row < rows ? shared.windows[units.token + row] : Window{};
            const uint32_t barrier = shared_address(&shared.unit_full[slot]);
            mbarrier_arrive_expect(barrier, int(sizeof shared.queries[slot]) + rows * task.heads * 4);
            if constexpr (!Shape::mxfp4)
                copy_box(shared_address(shared.queries[slot]), &task.query_map, 0, units.token, barrier);
            for (int row = 0; row < rows; ++row)
                copy_bulk(shared_address(&shared.weights[slot][row * Shape::heads]),
                          static_cast<const float*>(task.w.data) + element(task.w, units.token + row),
                          task.heads * 4, barrier);
        }
        __syncwarp();
    }
}

// A warp that copies every kCopyWarps-th tile of a block.
template <class Shape>
class FewProducer {
public:
    // Reads what it needs of the table's description, while windows come: that takes 65 cycles per 64 bytes.
    __device__ FewProducer(const FewTask& task, FewShared<Shape>& shared, int warp)
        : task_(task),
          shared_(shared),
          warp_(warp),
          tiles_shift_(task.tiles_shift),
          blocks_(uint32_t(min(task.place.table.shape[1], int64_t(INT32_MAX)))),
          table_(static_cast<const int32_t*>(task.place.table.data)),
          request_stride_(task.place.table.stride_elems[0]),
          block_stride_(task.place.table.stride_elems[1]) {
        asm volatile(""
                     : "+r"(tiles_shift_), "+r"(blocks_), "+l"(table_), "+l"(request_stride_),
                       "+l"(block_stride_));
    }

    __device__ void run(const Share& share) {
        Units<Shape> units(task_, shared_, share);
        int next = warp_;  // tile of the block
        while (units.next()) {
            const int request = shared_.requests[units.token];
            const int32_t* const pages = table_ + request * request_stride_;
            const uint32_t blocks = request < 0 ? 0 : blocks_;
            const int end = units.done + units.count;
            int page = -1;  // of this warp's next 32 tiles, one per lane
            for (int known = 0; next < end; next += kCopyWarps, --known) {
                const int tile = units.tile + next - units.done;
                if (known == 0) {
                    const int later = lane() * kCopyWarps;
                    const uint32_t block = uint32_t(tile + later) >> tiles_shift_;
                    const bool named = next + later < end && block < blocks;
                    page = named ? __ldg(pages + block * block_stride_) : -1;
                    known = 32;
                }
                const int own = __shfl_sync(~0u, page, 32 - known);
                FewStage<Shape>& stage = shared_.stages[uint32_t(next) % Shape::stages];
                mbarrier_wait(shared_address(&stage.empty), (uint32_t(next) / Shape::stages & 1) ^ 1);
                if (lane() == 0) copy_tile(stage, own, uint32_t(tile) % (1u << tiles_shift_));
                __syncwarp();
            }
        }
    }

private:
    __device__ static int lane() { return int(threadIdx.x % 32); }
    __device__ void copy_tile(FewStage<Shape>& stage, int page, uint32_t part) const {
        using Record = KeyRecord<Shape::products>;
        constexpr int kBytes = kKeys * Shape::code_bytes, kScales = kKeys * kScaleBytes;
        const uint32_t barrier = shared_address(&stage.full);
        const bool comes = page >= 0 && page < task_.place.pages;
        stage.hole = !comes;
        mbarrier_arrive_expect(barrier, comes ? kBytes + kScales : 0);
        if (!comes) return;
        const char* const at = task_.data + page * task_.page_stride;
        if constexpr (Shape::mxfp4) {
            const bool all = tiles_shift_ == 0;  // of the page
            copy_bulk(shared_address(stage.keys), at + Record::row_at(part * kKeys),
                      all ? kBytes + kScales : kBytes, barrier);
            if (all) return;
        } else {
            copy_box(shared_address(stage.keys), &task_.key_map, int(part) * kKeys, page, barrier);
        }
        copy_bulk(shared_address(stage.scales), at + Record::scale_at(task_.place.page_tokens, part * kKeys),
                  kScales, barrier);
    }

    const FewTask& task_;
    FewShared<Shape>& shared_;
    const int warp_;
    int tiles_shift_;
    uint32_t blocks_;  // of a request
    const int32_t* table_;
    int64_t request_stride_, block_stride_;
};

// A warpgroup, which multiplies every kGroups-th tile of a block.
template <class Shape>
class FewConsumer {
    using Bank = float[Shape::columns / 2];
    using Stage = FewStage<Shape>;
    using Keys = KeyOperand<Shape::products>;
    static constexpr uint32_t kScalesAt = offsetof(Stage, scales);
    static_assert(kScaleBytes == 4);

public:
    __device__ FewConsumer(const FewTask& task, FewShared<Shape>& shared)
        : task_(task),
          shared_(shared),
          group_(__shfl_sync(~0u, int(threadIdx.x / 128), 0)),
          last_(shared_address(shared.stages) + uint32_t(sizeof shared.stages)),
          stage_(shared_address(shared.stages) + uint32_t(group_) * uint32_t(sizeof(Stage))) {}

    __device__ void run(const Share& share) {
        int done = 0;
        for (uint32_t n = 0; done < share.count; ++n) {
            const uint32_t slot = n % kSlots;
            mbarrier_wait(shared_address(&shared_.unit_full[slot]), n / kSlots & 1);
            const FewUnit& unit = shared_.units[slot];
            const int count = unit.count, first = (group_ - done) & (kGroups - 1);
            if (first < count) {
                load_unit(unit, slot);
                int column = (unit.tile + first) * kKeys + own_key();
                for (int i = first; i < count; i += kGroups, column += kGroups * kKeys) multiply_tile(column);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared_.unit_empty[slot]));
            done += count;
        }
    }

private:
    __device__ void load_unit(const FewUnit& unit, uint32_t slot) {
        if constexpr (Shape::mxfp4) convert_mxfp4_queries(unit);
        else if constexpr (Shape::converts) convert_queries(slot);
        else queries_ = uint32_t(k_major(shared_address(shared_.queries[slot])));
#pragma unroll
        for (int i = 0; i < Shape::columns / 8; ++i) {
            const float2 two =
                *reinterpret_cast<const float2*>(&shared_.weights[slot][8 * i + threadIdx.x % 4 * 2]);
            weights_[2 * i] = kReluFactor<Shape::products> * two.x;
            weights_[2 * i + 1] = kReluFactor<Shape::products> * two.y;
        }
        const int64_t bytes = task_.logits.bf16 ? 2 : 4;
        const int row = Shape::rows == 1 ? 0 : int(threadIdx.x % 4 / 2);
        first_row_ = shared_address(&unit.windows[row]);
        window_ = unit.windows[row];
        logits_ = static_cast<char*>(task_.logits.data) +
                  ((unit.token + row) * task_.logits.stride - task_.window.begin) * bytes;
    }
    // A k-step of 16 has 4 values of each of the lanes t of load_keys: values 0 and 1 of lane t at 2 t, 2 and
    // 3 at 8 + 2 t.
    __device__ void convert_queries(uint32_t slot) {
        char* const to = begin_queries();
        for (int i = int(threadIdx.x % 128); i < Shape::columns * 8; i += 128) {
            const int column = i / 8, chunk = i % 8;  // chunks 2 t and 2 t + 1 are lane t's
            const auto* const from = tile_chunk(shared_.queries[slot], column, chunk);
            char* const tile = to + chunk % 2 * (Shape::columns * 128);
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                uint32_t low, high;
                e4m3_to_f16(from[s], low, high);
                tile_chunk(tile, column, 2 * s)[chunk / 2] = low;
                tile_chunk(tile, column, 2 * s + 1)[chunk / 2] = high;
            }
        }
        end_queries();
    }
    // As in queries.cuh. Of heads, none is of padding.
    __device__ void convert_mxfp4_queries(const FewUnit& unit) {
        char* const to = begin_queries();
        constexpr int kPieces = Shape::code_bytes / 16, kEach = Shape::columns * kPieces / 128;
        uint4 codes[kEach]{};
        uint32_t scales[kEach]{};
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int at = int(threadIdx.x % 128) + 128 * i, piece = at % kPieces, column = at / kPieces;
            const int64_t token = unit.token + column / Shape::heads;
            const int head = column % Shape::heads;
            if (token >= task_.tokens) continue;
            codes[i] = __ldg(reinterpret_cast<const uint4*>(query_at<Shape>(task_, token, head)) + piece);
            scales[i] = e8m0_to_bf16_pair(__ldg(static_cast<const uint8_t*>(task_.q_scales.data) +
                                                element(task_.q_scales, token, head, piece)));
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int at = int(threadIdx.x % 128) + 128 * i;
            place_piece<Shape>(to, at / kPieces, at % kPieces, codes[i], scales[i]);
        }
        end_queries();
    }
    // No warp multiplies the queries before any more.
    __device__ char* begin_queries() const {
        named_barrier<128>(2 + group_);
        return shared_.converted[group_];
    }
    __device__ void end_queries() {
        fence_async_proxy();
        named_barrier<128>(2 + group_);
        queries_ = uint32_t(k_major(shared_address(shared_.converted[group_])));
    }
    // Lane 4 g + t takes chunks 2 t and 2 t + 1 of keys g and g + 8 of its warp: no bank conflicts. Of mxfp4
    // it takes chunk t, as in keys.cuh.
    __device__ void load_keys(Keys& keys) const {
        if constexpr (Shape::mxfp4) return keys.load(stage_, own_chunk_, stage_ + kScalesAt);
        const uint32_t at = stage_ + own_chunk_;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint4 all = load_shared_4((at ^ (half * 16)) + i * (8 * kWidth));
                const uint32_t words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    e4m3_to_f16(words[s], keys.a[4 * half + s][i], keys.a[4 * half + s][2 + i]);
            }
    }
    __device__ void read_key(float& scale, bool& hole) const {  // of the thread's own key
        scale = Shape::mxfp4 ? 1.f : load_shared_f32(stage_ + own_scale_);
        hole = load_shared(stage_ + offsetof(Stage, hole));
    }
    __device__ void release_stage() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(stage_ + offsetof(Stage, empty));
        stage_ += kGroups * sizeof(Stage);
        if (stage_ >= last_) {
            stage_ -= uint32_t(sizeof(Stage) * Shape::stages);
            turn_ ^= 1;
        }
    }
    __device__ void multiply_keys(Bank& bank, float& scale, bool& hole) {
        const uint64_t high = k_major(0) >> 32 << 32;
        if constexpr (Shape::converts) {
            Keys keys;
            load_keys(keys);
            read_key(scale, hole);
            release_stage();
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 8; ++s) {
                const uint32_t at = queries_ + (s / 4 * (Shape::columns * 128) + s % 4 * 32) / 16;
                wgmma_half<Shape::mxfp4 ? Half::bf16 : Half::f16>(bank, keys.a[s], high | at, s > 0);
            }
            wgmma_commit();
            wgmma_wait<0>();
        } else {
            const uint32_t keys = uint32_t(k_major(0)) + (stage_ >> 4);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; ++s)
                wgmma_e4m3(bank, high | (keys + 2 * s), high | (queries_ + 2 * s), s > 0);
            wgmma_commit();
            read_key(scale, hole);
            wgmma_wait<0>();
            release_stage();
        }
    }
    __device__ void multiply_tile(int column) {
        mbarrier_wait(stage_ + offsetof(Stage, full), turn_);
        Bank bank;
        float scale;
        bool hole;
        multiply_keys(bank, scale, hole);
#pragma unroll
        for (int i = 0; i < Shape::stores; ++i) {
            float sums[2][2];
            constexpr int kTwo = Shape::rows == 1 ? 1 : 2;
            add(bank, 2 * i, sums[0]);
            if constexpr (kTwo == 2) add(bank, 2 * i + 1, sums[1]);
            const float sum = finish(sums[0], sums[kTwo - 1]);
            if (row_window(i).has(column)) {
                const float logit = hole ? -INFINITY : sum * scale;
                char* const row = logits_ + i * task_.two_rows_bytes;
                if (task_.logits.bf16) reinterpret_cast<uint16_t*>(row)[column] = to_bf16(logit);
                else reinterpret_cast<float*>(row)[column] = logit;
            }
        }
    }
    // From a register that is there anyway: they are short.
    __device__ int own_key() const { return int((own_scale_ - kScalesAt) / 4); }
    __device__ Window row_window(int i) const {
        if constexpr (Shape::stores == 1) return window_;
        const uint2 window = load_shared_2(first_row_ + i * 2 * uint32_t(sizeof(Window)));
        return {int(window.x), int(window.y)};
    }
    // sums[i]: of key g + 8 i over this thread's heads of a row.
    __device__ void add(const Bank& bank, int row, float (&sums)[2]) const {
        const int first = row * Shape::heads / 8;  // n8-block
        float odd[2];
#pragma unroll
        for (int i = first; i < first + Shape::heads / 8; ++i) {
#pragma unroll
            for (int key = 0; key < 2; ++key) {
                const float x0 = bank[4 * i + 2 * key], x1 = bank[4 * i + 2 * key + 1];
                sums[key] = fmaf(weights_[2 * i], relu<Shape::products>(x0), i == first ? 0.f : sums[key]);
                odd[key] = fmaf(weights_[2 * i + 1], relu<Shape::products>(x1), i == first ? 0.f : odd[key]);
            }
        }
        sums[0] += odd[0];
        sums[1] += odd[1];
    }

    const FewTask& task_;
    FewShared<Shape>& shared_;
    const int group_;
    // In a stage: the scale of the thread's own key, whose logits it stores; its first chunk (load_keys).
    const uint32_t own_scale_ =
        kept(kScalesAt + (threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + threadIdx.x % 2 * 8) * 4);
    const uint32_t own_chunk_ =
        kept((threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) * Shape::code_bytes +
             ((Shape::mxfp4 ? threadIdx.x % 4 : threadIdx.x % 4 * 2 ^ threadIdx.x % 32 / 4) << 4));
    const uint32_t last_;  // where the stages end
    uint32_t stage_, turn_ = 0;
    uint32_t queries_;  // low word of their descriptor
    float weights_[Shape::columns / 4];
    Window window_;       // of the first row that the thread stores
    uint32_t first_row_;  // where it lies
    char* logits_;        // column 0 of the first row that the thread stores
};

template <class Shape>
__global__ void __launch_bounds__(kThreads, 1) score_few_sm90(const __grid_constant__ FewTask task) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<FewShared<Shape>*>(memory);
    const bool produces = int(threadIdx.x) >= kConsumers;
    const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
    if (threadIdx.x == kConsumers) {
        shared.start();
        if (!Shape::mxfp4) prefetch_map(&task.key_map), prefetch_map(&task.query_map);
    }
    if (warp == kConsumers / 32 + kCopyWarps) {
        prefetch_table(task);
        // Weights of heads of padding, which no copy writes.
        const int padding = Shape::heads - task.heads;
        for (int i = int(threadIdx.x % 32); i < kSlots * Shape::rows * padding; i += 32)
            (&shared.weights[0][0])[i / padding * Shape::heads + task.heads + i % padding] = 0;
    }
    if (produces) {
        lower_registers<kProducerRegisters>();
        FewProducer<Shape> producer(task, shared, warp - kConsumers / 32);
        __syncthreads();
        const Share share(task, shared.ends[task.tokens - 1]);
        if (warp == kConsumers / 32 + kCopyWarps) announce_units<Shape>(task, shared, share);
        else producer.run(share);
        return;
    }
    find_tiles<Shape>(task, shared);
    __syncthreads();
    const Share share(task, shared.ends[task.tokens - 1]);
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
