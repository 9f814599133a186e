// Tiles of keys of a warpgroup: copied raw into shared memory, then to registers as the first operand of
// wgmma.
//
// The first warp of the warpgroup copies. A tile that lies in one page comes by two bulk copies, of its keys
// and of their scales; any other tile comes key by key. Per stage `full` waits for the bytes and
// `empty` for the four warps that have read them. Lane 4 g + t multiplies, of keys g and g + 8 of its warp,
// the 16-byte pieces t and t + 4. Which values meet in a k-step does not matter as long as queries are
// ordered alike (queries.cuh).
#pragma once

#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/shared.cuh"
#include "engines/cuda/score/sm90/config.h"

namespace smla::cuda::sm90 {

template <Products P>
struct KeyOperand;
template <>
struct KeyOperand<Products::e4m3> {
    static constexpr int steps = 4;
    uint32_t a[steps][4];
    // Word w of key g + 8 i: half w % 2 of k-step w / 2.
    __device__ void set(int i, int w, uint32_t word) { a[w / 2][i + w % 2 * 2] = word; }
};
template <>
struct KeyOperand<Products::f16> {
    static constexpr int steps = 8;
    uint32_t a[steps][4];
    __device__ void set(int i, int w, uint32_t word) { e4m3_to_f16(word, a[w][i], a[w][2 + i]); }
};

// The same in all lanes of a warp, and known to be.
__device__ inline int warp_of_block() { return __shfl_sync(~0u, int(threadIdx.x / 32), 0); }

template <int Stages>
class KeyRing {
    using Layout = layout::IndexFp8_132;

public:
    __device__ KeyRing(const ScoreTask& task, const Shared& shared)
        : task_(task),
          keys_(task.keys),
          places_(shared.places[warp_of_block() / 4]),
          fills_(warp_of_block() % 4 == 0),
          stages_(shared_address(shared.keys) + warp_of_block() / 4 * Stages * kStageBytes) {}

    // Before the first use; a __syncthreads follows.
    __device__ void start() const {
        if (threadIdx.x % 128) return;
        for (int stage = 0; stage < Stages; ++stage)
            mbarrier_init(full(stage), 1), mbarrier_init(empty(stage), 4);
        fence_mbarrier_init();
    }
    // The next tiles are every kGroups-th of [tile, end). Starts the copies of the first ones.
    __device__ void aim(const KeyColumns::Pages& pages, Window window, int tile, int end) {
        tile_ = tile, end_ = end;
        const KeyColumns& place = keys_.place;
        const bool table = pages.blocks != nullptr;
        // Without a table, pages must have no rows of padding.
        const bool joined = table || task_.page_shift == 31 || place.divisor == place.page_tokens;
        const int last = int(table ? window.end : min(int64_t(window.end), place.capacity)) / kKeys;
        whole_ = {(window.begin + kKeys - 1) / kKeys, joined && task_.page_shift >= kShift ? last : 0};
        if (!fills_) return;
        __syncwarp();
        if (lane() == 0) places_ = {pages, window};
        __syncwarp();
        page_ = look(tile + (lane() - place_of(tile)) * kGroups);
#pragma unroll 1
        for (int i = 0; i + 1 < Stages; ++i) fetch();
    }

    // Key of a tile whose logits this lane stores; lanes t and t + 2 share one.
    __device__ static int own_key() {
        return int(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + threadIdx.x % 2 * 8);
    }
    // Whether all keys of a tile are in the window and in one page.
    __device__ bool whole(int tile) const { return whole_.has(tile); }
    __device__ bool has(int tile) const { return tile < end_; }
    // Starts to copy the next tile, if there is one, as soon as its stage is empty.
    __device__ void fetch() {
        if (!fills_ || !has(tile_)) return;
        const int page = __shfl_sync(~0u, page_, place_of(tile_));
        mbarrier_wait(empty(stage_of(fetched_)), phase_of(fetched_) ^ 1);
        if (whole(tile_)) fetch_page(page);
        else fetch_keys();
        ++fetched_;
        tile_ += kGroups;
        // the tiles in flight hide the latency of this load
        if (place_of(tile_) == 0) page_ = look(tile_ + lane() * kGroups);
    }
    // Waits for the oldest tile that has not been taken.
    template <Products P>
    __device__ void take(KeyOperand<P>& out) {
        const uint32_t stage = at(stage_of(taken_));
        const uint32_t from = stage + (threadIdx.x % 128 / 32 * 16 + lane() / 4) * kWidth + lane() % 4 * 16;
        mbarrier_wait(full(stage_of(taken_)), phase_of(taken_));
#pragma unroll
        for (int piece = 0; piece < 4; ++piece) {
            const uint4 all = load_shared_4(from + piece / 2 * (8 * kWidth) + piece % 2 * 64);
            const uint32_t words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) out.set(piece / 2, piece % 2 * 4 + i, words[i]);
        }
        const uint32_t own = own_key();
        scale_ = load_shared_f32(stage + kScales + own * 4);
        hole_ = load_shared(stage + kHoles + own / 32 * 4) >> own % 32 & 1;
        __syncwarp();
        if (lane() == 0) mbarrier_arrive(empty(stage_of(taken_)));
        ++taken_;
    }
    // Of the tile taken last. In a whole tile all keys are holes or none is.
    __device__ float factor() const { return scale_; }
    __device__ bool hole() const { return hole_; }

private:
    static constexpr int kShift = 6, kScales = kKeys * kWidth, kHoles = kScales + kKeys * 4,
                         kFull = kHoles + 8, kEmpty = kFull + 8;
    static_assert(1 << kShift == kKeys && kEmpty + 8 <= kStageBytes);

    static_assert((Stages & (Stages - 1)) == 0);
    // Stage and phase of the n-th tile.
    __device__ static int stage_of(uint32_t n) { return int(n % Stages); }
    __device__ static uint32_t phase_of(uint32_t n) { return n / Stages & 1; }
    __device__ static int place_of(int tile) { return tile / kGroups % 32; }
    __device__ static int lane() { return int(threadIdx.x % 32); }
    __device__ uint32_t at(int stage) const { return stages_ + stage * kStageBytes; }
    __device__ uint32_t full(int stage) const { return at(stage) + kFull; }
    __device__ uint32_t empty(int stage) const { return at(stage) + kEmpty; }

    // Below 0: none.
    __device__ int page_of(uint32_t block) const {
        if (!places_.pages.blocks) return int(block);
        return block < places_.pages.count
                   ? __ldg(places_.pages.blocks + block * keys_.place.table.stride_elems[1])
                   : -1;
    }
    __device__ int look(int tile) const {
        return has(tile) && whole(tile) ? page_of(uint32_t(tile) * kKeys >> task_.page_shift) : -1;
    }
    __device__ void look_key(int column, int& page, uint32_t& offset) const {  // past 2^31 - 1 it is below 0
        page = -1, offset = 0;
        if (column < places_.window.begin || column >= places_.window.end) return;
        const KeyColumns& place = keys_.place;
        const uint32_t block =
            task_.page_shift >= 0 ? uint32_t(column) >> task_.page_shift : uint32_t(column) / place.divisor;
        offset = uint32_t(column) - block * place.divisor;
        if (places_.pages.blocks || (column < place.capacity && offset < place.page_tokens))
            page = page_of(block);
    }
    __device__ bool here(int page) const { return page >= 0 && page < keys_.place.pages; }
    __device__ const char* row(int page, uint32_t offset) const {
        return keys_.data + page * keys_.page_stride + Layout::row_at(offset);
    }
    __device__ const char* scale(int page, uint32_t offset) const {
        return keys_.data + page * keys_.page_stride + Layout::scale_at(keys_.place.page_tokens, offset);
    }
    __device__ void fetch_page(int page) const {
        if (lane()) return;
        const uint32_t stage = at(stage_of(fetched_)), barrier = full(stage_of(fetched_));
        const uint32_t start = uint32_t(tile_) * kKeys,
                       offset = start - (start >> task_.page_shift) * keys_.place.divisor;
        const bool comes = here(page);
        const uint32_t holes = comes ? 0 : ~0u;
        store_shared(stage + kHoles, uint2{holes, holes});
        mbarrier_arrive_expect(barrier, comes ? kKeys * (kWidth + 4) : 0);
        if (!comes) return;
        copy_bulk(stage, row(page, offset), kKeys * kWidth, barrier);
        copy_bulk(stage + kScales, scale(page, offset), kKeys * 4, barrier);
    }
    __device__ void fetch_keys() const {
        const uint32_t stage = at(stage_of(fetched_)), barrier = full(stage_of(fetched_));
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
            const int own_key = 32 * half + lane();
            int page;
            uint32_t offset;
            look_key(tile_ * kKeys + own_key, page, offset);
            const bool comes = here(page);
            const char* const own = comes ? row(page, offset) : keys_.data;
            const uint32_t holes = __ballot_sync(~0u, !comes);
            if (lane() == 0) store_shared(stage + kHoles + 4 * half, holes);
            cp_async_4(stage + kScales + own_key * 4, comes ? scale(page, offset) : own, comes);
#pragma unroll 1
            for (int key = lane() / 8; key < 32; key += 4) {  // 8 lanes per key
                const uint64_t from = __shfl_sync(~0u, reinterpret_cast<uint64_t>(own), key);
                cp_async_16(stage + (32 * half + key) * kWidth + lane() % 8 * 16,
                            reinterpret_cast<const char*>(from) + lane() % 8 * 16, !(holes >> key & 1));
            }
        }
        mbarrier_count_copies(barrier);
        __syncwarp();
        if (lane() == 0) mbarrier_arrive(barrier);
    }

    const ScoreTask& task_;
    const KeySource& keys_;
    KeyPlaces& places_;  // in shared memory, as registers are short
    const bool fills_;
    const uint32_t stages_;
    Window whole_;  // tiles
    int tile_ = 0, end_ = 0;
    int page_ = -1;                     // of 32 tiles: lane place_of(tile) has the page of a whole tile
    uint32_t fetched_ = 0, taken_ = 0;  // tiles so far
    float scale_ = 0;
    bool hole_ = false;
};

}  // namespace smla::cuda::sm90
