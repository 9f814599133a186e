// A warpgroup that multiplies: products, relu, weights, sums, logits.
#pragma once

#include "engines/cuda/score/sm90/kernel.cuh"
#include "engines/cuda/score/sm90/pages/units.cuh"

namespace smla::cuda::sm90::pages {

// A multiplying warpgroup. With few rows it multiplies every kGroups-th tile of a block; with many rows, only
// its team's tiles.
template <class Shape>
class Consumer {
    using Bank = float[Shape::columns / 2];
    using Stage = Stage<Shape>;
    using Keys = KeyOperand<Shape::products>;
    static constexpr uint32_t kScalesAt = offsetof(Stage, scales);
    static constexpr int kStep = Shape::many ? 1 : kGroups;  // distance of a warpgroup's tiles
    static_assert(kScaleBytes == 4);

public:
    __device__ Consumer(const Task& task, Shared<Shape>& shared)
        : task_(task),
          shared_(shared),
          group_(__shfl_sync(~0u, int(threadIdx.x / 128), 0)),
          stage_(shared_address(shared.stages) + (Shape::many ? 0 : uint32_t(group_ * sizeof(Stage)))) {}

    __device__ void run() {
        int done = 0;
        for (uint32_t n = 0;; ++n) {
            const uint32_t slot = n % kSlots;
            mbarrier_wait(shared_address(&shared_.unit_full[slot]), n / kSlots & 1);
            const Unit<Shape>& unit = shared_.units[slot];
            const int count = __shfl_sync(~0u, unit.count, 0);
            if (count == 0) return;
            if constexpr (Shape::many) multiply_for_team(unit, slot, count);
            else multiply_own(unit, slot, count, done);
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&shared_.unit_empty[slot]));
            done += count;
        }
    }

private:
    __device__ void multiply_own(const Unit<Shape>& unit, uint32_t slot, int count, int done) {
        const int first = (group_ - done) & (kGroups - 1);
        if (first >= count) return;
        load_unit(unit, slot);
        int column = (unit.tile + first) * kKeys + own_key();
        for (int i = first; i < count; i += kGroups, column += kGroups * kKeys) multiply_tile(column);
    }
    // Teams process tiles round-robin. A stage is empty when all warpgroups have released it, so they release
    // skipped tiles, too.
    __device__ void multiply_for_team(const Unit<Shape>& unit, uint32_t slot, int count) {
        const int team_log2 = __shfl_sync(~0u, unit.team_log2, 0), rows = __shfl_sync(~0u, unit.rows, 0);
        const int teams = kGroups >> team_log2, team = group_ >> team_log2;
        own_row_ = (group_ & ((1 << team_log2) - 1)) * Shape::rows;
        const bool idle = own_row_ >= rows;
        int i = idle ? count : min(team, count);
        int column = (unit.tile + i) * kKeys + own_key();
        skip_tiles(i);
        if (i < count) load_unit(unit, slot);
        if (teams == 1) {  // a separate loop, because the other loop makes prompts 2 to 4 % slower
            for (; i < count; ++i, column += kKeys) multiply_tile(column);
            return;
        }
        for (; i < count; i += teams, column += teams * kKeys) {
            multiply_tile(column);
            skip_tiles(min(teams, count - i) - 1);
        }
    }
    __device__ void skip_tiles(int count) {
#pragma unroll 1
        for (; count > 0; --count) {
            mbarrier_wait(stage_ + offsetof(Stage, full), turn_);
            release_stage();
        }
    }
    __device__ void load_unit(const Unit<Shape>& unit, uint32_t slot) {
        if constexpr (Shape::mxfp4) convert_mxfp4_queries(unit);
        else if constexpr (Shape::converts) convert_queries(slot);
        else
            queries_ = kept(uint32_t(
                k_major(shared_address(shared_.queries[slot]) + own_row_ * (Shape::heads * kWidth))));
#pragma unroll
        for (int i = 0; i < Shape::columns / 8; ++i) {
            const float2 two = *reinterpret_cast<const float2*>(
                &shared_.weights[slot][own_row_ * Shape::heads + 8 * i + threadIdx.x % 4 * 2]);
            weights_[2 * i] = kReluFactor<Shape::products> * two.x;
            weights_[2 * i + 1] = kReluFactor<Shape::products> * two.y;
        }
        const int64_t bytes = task_.logits.bf16 ? 2 : 4;
        const int row = own_row_ + (Shape::rows == 1 ? 0 : int(threadIdx.x % 4 / 2));
        first_row_ = shared_address(&unit.windows[row]);
        window_ = unit.windows[row];
        logits_ = static_cast<char*>(task_.logits.data) +
                  ((unit.token + row) * task_.logits.stride - task_.window.begin) * bytes;
    }
    // A k-step of 16 has 4 values of each of the lanes t of load_keys: values 0 and 1 of lane t at 2 t, 2 and
    // 3 at 8 + 2 t. The codes of a k-step are one word of each of four chunks, 2 t or 2 t + 1. To avoid bank
    // conflicts, a warp converts columns 0, 2, 4, 6 or 1, 3, 5, 7 of eight, and half of its threads store the
    // second chunk first.
    __device__ void convert_queries(uint32_t slot) {
        char* const to = begin_queries();
        const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x % 128 / 32);
        const int word = lane % 4, odd = lane / 4 % 2;
        for (int i = warp; i < Shape::columns / 4; i += 4) {
            const int column = i / 2 * 8 + i % 2 + lane / 8 * 2;
            uint32_t low[4], high[4];
#pragma unroll
            for (int t = 0; t < 4; ++t)
                e4m3_to_f16(tile_chunk(shared_.queries[slot], column, 2 * t + odd)[word], low[t], high[t]);
            char* const tile = to + odd * (Shape::columns * 128);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const bool second = half != odd;
                const uint4 chunk = second ? make_uint4(high[0], high[1], high[2], high[3])
                                           : make_uint4(low[0], low[1], low[2], low[3]);
                *reinterpret_cast<uint4*>(tile_chunk(tile, column, 2 * word + second)) = chunk;
            }
        }
        end_queries();
    }
    // Converts like queries.cuh; no heads are padding.
    __device__ void convert_mxfp4_queries(const Unit<Shape>& unit) {
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
    // Waits until no warp multiplies the previous queries.
    __device__ char* begin_queries() const {
        named_barrier<128>(2 + group_);
        return shared_.converted[group_];
    }
    __device__ void end_queries() {
        fence_async_proxy();
        named_barrier<128>(2 + group_);
        queries_ = uint32_t(k_major(shared_address(shared_.converted[group_])));
    }
    // Lane 4 g + t loads chunks 2 t and 2 t + 1 of keys g and g + 8 of its warp, which avoids bank conflicts.
    // For mxfp4 it loads chunk t, as in keys.cuh.
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
    // Loads the scale and mask of the thread's key. Returns the last loaded word, for release_stage().
    __device__ uint32_t read_key(float& scale, bool& hole) const {
        scale = Shape::mxfp4 ? 1.f : load_shared_f32(stage_ + own_scale_);
        const uint32_t end = load_shared(stage_ + offsetof(Stage, scales_end));
        hole = own_scale_ >= end;
        return end;
    }
    // An arrival does not wait for loads. Without the comparison with the last loaded word, which is never 0,
    // the next tile could overwrite this one during the loads. Loads of a warp are served in order.
    __device__ void release_stage(uint32_t loaded = 1) {
        __syncwarp();
        if (only_first_lane_ < loaded) mbarrier_arrive(stage_ + offsetof(Stage, empty));
        stage_ += kStep * sizeof(Stage);
        if (--left_ == 0) {
            stage_ -= uint32_t(sizeof(Stage) * Shape::stages);
            left_ = Shape::stages / kStep;
            turn_ ^= 1;
        }
    }
    __device__ void multiply_keys(Bank& bank, float& scale, bool& hole) {
        const uint64_t high = k_major(0) >> 32 << 32;
        if constexpr (Shape::converts) {
            Keys keys;
            const uint32_t loaded = read_key(scale, hole);
            load_keys(keys);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 8; ++s) {
                const uint32_t at = queries_ + (s / 4 * (Shape::columns * 128) + s % 4 * 32) / 16;
                wgmma_half<Shape::mxfp4 ? Half::bf16 : Half::f16>(bank, keys.a[s], high | at, s > 0);
            }
            wgmma_commit();
            release_stage(loaded);  // products have started, so all keys are loaded
            wgmma_wait<0>();
        } else {
            const uint32_t keys = uint32_t(k_major(0)) + (stage_ >> 4);
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 4; ++s)
                wgmma_e4m3(bank, high | (keys + 2 * s), high | (queries_ + 2 * s), s > 0);
            wgmma_commit();
            const uint32_t loaded = read_key(scale, hole);
            wgmma_wait<0>();
            release_stage(loaded);
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
    // Derived from an existing register, to save registers.
    __device__ int own_key() const { return int((own_scale_ - kScalesAt) / 4); }
    __device__ Window row_window(int i) const {
        if constexpr (Shape::stores == 1) return window_;
        const uint2 window = load_shared_2(first_row_ + i * 2 * uint32_t(sizeof(Window)));
        return {int(window.x), int(window.y)};
    }
    // Sets sums[i] to the sum for key g + 8 i over this thread's heads of a row.
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

    const Task& task_;
    Shared<Shape>& shared_;
    const int group_;
    int own_row_ = 0;  // first row of the unit that this warpgroup multiplies
    // Offsets in a stage: scale of the thread's key, whose logits it stores; first chunk (load_keys).
    const uint32_t own_scale_ =
        kept(kScalesAt + (threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + threadIdx.x % 2 * 8) * 4);
    const uint32_t own_chunk_ =
        kept((threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) * Shape::code_bytes +
             ((Shape::mxfp4 ? threadIdx.x % 4 : threadIdx.x % 4 * 2 ^ threadIdx.x % 32 / 4) << 4));
    const uint32_t only_first_lane_ = kept(threadIdx.x % 32 ? ~0u : 0u);
    uint32_t stage_, turn_ = 0;
    int left_ = Shape::stages / kStep;  // stages until the ring wraps
    uint32_t queries_;                  // low word of the queries' descriptor
    float weights_[Shape::columns / 4];
    Window window_;       // window of the first row that the thread stores
    uint32_t first_row_;  // address of that row's window
    char* logits_;        // column 0 of that row
};

}  // namespace smla::cuda::sm90::pages
