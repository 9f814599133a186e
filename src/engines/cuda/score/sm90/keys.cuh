// A warp's 16 keys of a tile: copied raw into shared memory, then to registers as the first operand of wgmma.
//
// Lane 4 g + t copies, of keys g and g + 8, the 16-byte pieces t and t + 4, so a quad of lanes reads whole
// sectors. It multiplies what it copied: slots of shared memory belong to one lane each, and there is no
// barrier, bank conflict or shuffle. Which values meet in a k-step does not matter as long as queries are
// ordered alike (queries.cuh).
#pragma once

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

template <int Stages>
class KeyRing {
    using Layout = layout::IndexFp8_132;

public:
    __device__ KeyRing(const ScoreTask& task, const KeyColumns::Pages& pages, Window window, char* shared)
        : keys_(task.keys),
          pages_(pages),
          window_(window),
          shift_(task.page_shift),
          whole_(whole_tiles()),
          slots_(shared_address(shared) + threadIdx.x % 128 * 16),
          scales_(shared_address(shared) + kKeys * kWidth + threadIdx.x % 128 * 4) {}

    // Column of a tile whose key this lane looks up and whose logits it stores; lanes t and t + 2 share one.
    __device__ static int own_column(int tile) {
        return tile * kKeys + int(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + threadIdx.x % 2 * 8);
    }

    // Whether a tile is in the window, and in one page.
    __device__ bool whole(int tile) const { return whole_.has(tile); }

    struct Place {
        int page;         // below 0 or past the cache: a hole
        uint32_t offset;  // of this lane's key; whole: of the first key of the tile
    };
    // Starts the look-up of the page of a tile or of this lane's key. Columns outside of the window are not
    // looked up.
    __device__ Place look(int tile) const {
        const KeyColumns& place = keys_.place;
        if (!whole(tile)) return look_key(own_column(tile));
        const uint32_t start = uint32_t(tile) * kKeys, block = start >> shift_;
        return {page_of(block), start - block * place.divisor};
    }
    // Starts the copy of a tile, which take() gets Stages - 1 fetches later.
    __device__ void fetch(int tile, const Place& at, int stage) {
        const bool hole = at.page < 0 || at.page >= keys_.place.pages;
        const char* const page = keys_.data + (hole ? 0 : at.page) * keys_.page_stride;
        const char* const row = page + Layout::row_at(at.offset);
        const char* scale = page + Layout::scale_at(keys_.place.page_tokens, at.offset);
        const uint32_t to = slots_ + stage * kStageBytes;
        holes_ = holes_ << 1 | uint32_t(hole);
        if (whole(tile)) {
            const uint32_t warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
            copy(to, row + (warp * 16 + lane / 4) * kWidth + lane % 4 * 16, 8 * kWidth, !hole, !hole);
            scale += own_column(0) * sizeof(float);
        } else {
            const uint64_t own = hole ? 0 : reinterpret_cast<uint64_t>(row);
            const uint64_t first = __shfl_sync(~0u, own, threadIdx.x & 28);
            const uint64_t second = __shfl_sync(~0u, own, (threadIdx.x & 28) + 1);
            const auto* const from = reinterpret_cast<const char*>(first) + threadIdx.x % 4 * 16;
            copy(to, from, int64_t(second - first), first != 0, second != 0);
        }
        cp_async_4(scales_ + stage * kStageBytes, scale, !hole);
        cp_async_commit();
    }
    // Waits for the oldest of Stages tiles.
    template <Products P>
    __device__ void take(int stage, KeyOperand<P>& out) {
        cp_async_wait<Stages - 1>();
        scale_ = load_shared_f32(scales_ + stage * kStageBytes);
#pragma unroll
        for (int piece = 0; piece < 4; ++piece) {
            const uint4 all = load_shared_4(slots_ + stage * kStageBytes + piece * 2048);
            const uint32_t words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) out.set(piece / 2, piece % 2 * 4 + i, words[i]);
        }
    }
    // Of the tile taken last. In a whole tile all keys are holes or none is.
    __device__ float factor() const { return scale_; }
    __device__ bool hole() const { return holes_ >> (Stages - 1) & 1; }

private:
    static constexpr int kShift = 6;
    static_assert(1 << kShift == kKeys);

    // Below 0: none.
    __device__ int page_of(uint32_t block) const {
        if (!pages_.blocks) return int(block);
        return block < pages_.count ? __ldg(pages_.blocks + block * keys_.place.table.stride_elems[1]) : -1;
    }
    __device__ Place look_key(int column) const {  // past 2^31 - 1 it is below 0
        if (column < window_.begin || column >= window_.end) return {-1, 0};
        const KeyColumns& place = keys_.place;
        const uint32_t block = shift_ >= 0 ? uint32_t(column) >> shift_ : uint32_t(column) / place.divisor;
        const uint32_t offset = uint32_t(column) - block * place.divisor;
        const bool here = pages_.blocks || (column < place.capacity && offset < place.page_tokens);
        return {here ? page_of(block) : -1, offset};
    }
    // Without a table only one page will do.
    __device__ Window whole_tiles() const {
        int end = window_.end;
        if (!pages_.blocks) end = int(min(int64_t(end), keys_.place.capacity));
        const bool any = shift_ >= kShift && (pages_.blocks || shift_ == 31);
        return {(window_.begin + kKeys - 1) / kKeys, any ? end / kKeys : 0};
    }
    // This lane's pieces of two keys, the second `further` bytes from the first.
    __device__ static void copy(uint32_t to, const char* from, int64_t further, bool first, bool second) {
        cp_async_16(to, from, first);
        cp_async_16(to + 2048, from + 64, first);
        cp_async_16(to + 4096, from + further, second);
        cp_async_16(to + 6144, from + further + 64, second);
    }

    const KeySource& keys_;
    const KeyColumns::Pages& pages_;
    const Window window_;
    const int shift_;
    const Window whole_;  // tiles
    const uint32_t slots_, scales_;
    uint32_t holes_ = 0;  // bit i: of the tile fetched i tiles ago
    float scale_ = 0;
};

}  // namespace smla::cuda::sm90
