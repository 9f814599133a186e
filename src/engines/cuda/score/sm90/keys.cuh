// Tiles of keys: copied raw into shared memory, then to registers as the first operand of wgmma.
//
// A tile within one page is loaded by two bulk copies, of keys and of scales, or by one if the tile is the
// page; any other tile is copied key by key. Tile n of a block is copied by warp n % kGroups of the producer
// to stage n % stages, for warpgroup n % kGroups. Per stage, the copying warp and its bytes arrive at `full`,
// and the four reading warps at `empty`. Lane 4 g + t multiplies the 16-byte pieces t and t + 4 of keys g and
// g + 8 of its warp. Any values may share a k-step if queries have the same order (queries.cuh).
#pragma once

#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/shared.cuh"
#include "engines/cuda/score/sm90/config.h"

namespace smla::cuda::sm90 {

// First operand of k-step s: keys g and g + 8 of the warp.
template <Products P>
struct KeyOperand;

// Loads pieces t and t + 4, with 4 values per word.
template <class Operand>
__device__ inline void load_pieces(Operand& out, uint32_t at) {
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
        const uint4 all = load_shared_4(at + piece / 2 * (8 * kWidth) + piece % 2 * 64);
        const uint32_t words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) out.set(piece / 2, piece % 2 * 4 + i, words[i]);
    }
}
template <>
struct KeyOperand<Products::e4m3> {
    static constexpr int steps = 4;
    uint32_t a[steps][4];
    // Word w of key g + 8 i becomes half w % 2 of k-step w / 2.
    __device__ void set(int i, int w, uint32_t word) { a[w / 2][i + w % 2 * 2] = word; }
    __device__ void load(uint32_t keys, uint32_t at, uint32_t) { load_pieces(*this, keys + at); }
};
template <>
struct KeyOperand<Products::f16> {
    static constexpr int steps = 8;
    uint32_t a[steps][4];
    __device__ void set(int i, int w, uint32_t word) { e4m3_to_f16(word, a[w][i], a[w][2 + i]); }
    __device__ void load(uint32_t keys, uint32_t at, uint32_t) { load_pieces(*this, keys + at); }
};
template <>
struct KeyOperand<Products::bf16> {
    static constexpr int steps = 8;
    uint32_t a[steps][4];
    // Piece t has 32 values with one scale, byte t of a key's scales.
    __device__ void load(uint32_t keys, uint32_t at, uint32_t scales) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint4 all = load_shared_4(keys + at + i * (8 * kWidth / 2));
            const uint32_t words[4] = {all.x, all.y, all.z, all.w};
            const uint32_t scale =
                e8m0_to_bf16_pair(load_shared_byte(scales + at / 16 + i * (8 * kScaleBytes)));
#pragma unroll
            for (int s = 0; s < steps; ++s)
                e2m1_to_bf16(words[s / 2] >> (16 * (s % 2)), scale, a[s][i], a[s][2 + i]);
        }
    }
};

// Returns x in a register. The compiler cannot recompute the result of a shuffle; it would otherwise
// recompute x from the thread's number in every tile, which costs decoding 3 %. Called by whole warps.
__device__ inline uint32_t kept(uint32_t x) { return __shfl_sync(~0u, x, threadIdx.x % 32); }

// The stages of a block. Each stage has: keys | scales | a mask of masked keys | full | empty.
template <class Shape>
class KeyStages {
public:
    static constexpr int scales = kKeys * Shape::code_bytes, holes = scales + kKeys * kScaleBytes;

    // Called by whole warps.
    __device__ explicit KeyStages(const typename Shape::Memory& shared)
        : first_(kept(shared_address(shared.keys))) {}
    // Called by one thread, before the first use; a __syncthreads follows.
    __device__ void start() const {
        for (uint32_t n = 0; n < kCount; ++n) {
            mbarrier_init(full(n), 32 + 1);  // copies of all lanes, and the mask
            mbarrier_init(empty(n), 4);
        }
        fence_mbarrier_init();
    }
    __device__ uint32_t at(uint32_t n) const { return first_ + n % kCount * kBytes; }
    __device__ uint32_t full(uint32_t n) const { return at(n) + kFull; }
    __device__ uint32_t empty(uint32_t n) const { return at(n) + kEmpty; }
    __device__ static uint32_t phase(uint32_t n) { return n / kCount & 1; }

private:
    static constexpr uint32_t kCount = kGroups * Shape::stages, kBytes = stage_bytes(Shape::code_bytes);
    static constexpr int kFull = holes + 8, kEmpty = kFull + 8;
    static_assert((kCount & (kCount - 1)) == 0 && kEmpty + 8 <= int(kBytes));

    uint32_t first_;
};

// A copying warp.
template <class Shape>
class KeyProducer {
    using Record = KeyRecord<Shape::products>;

public:
    __device__ KeyProducer(const ScoreTask& task, typename Shape::Memory& shared,
                           const KeyStages<Shape>& stages)
        : keys_(task.keys),
          page_shift_(task.page_shift),
          stages_(stages),
          places_(shared.places[threadIdx.x / 32 % kGroups]),
          next_(threadIdx.x / 32 % kGroups),
          ahead_(int(next_)) {}

    __device__ void copy(const KeyColumns::Pages& pages, Window window, int tile, int end) {
        __syncwarp();
        if (lane() == 0) places_ = {pages, window};
        __syncwarp();
        const KeyColumns& place = keys_.place;
        const bool table = pages.blocks != nullptr;
        // Without a table, pages must have no padding rows.
        const bool joined = table || page_shift_ == 31 || place.divisor == place.page_tokens;
        const int last = int(table ? window.end : min(int64_t(window.end), place.capacity)) / kKeys;
        const Window whole{(window.begin + kKeys - 1) / kKeys, joined && page_shift_ >= kShift ? last : 0};
        int page = -1, known = 0;  // pages of this warp's tiles, one per lane; number of unused ones
        for (tile += ahead_; tile < end; tile += kGroups, next_ += kGroups, --known) {
            if (known == 0) {
                const int later = tile + lane() * kGroups;
                page = later < end && whole.has(later) ? page_of(uint32_t(later) * kKeys >> page_shift_) : -1;
                known = 32;
            }
            const int own = __shfl_sync(~0u, page, 32 - known);
            mbarrier_wait(stages_.empty(next_), stages_.phase(next_) ^ 1);
            if (whole.has(tile)) copy_page(tile, own);
            else copy_keys(tile);
        }
        ahead_ = tile - end;
    }

private:
    static constexpr int kShift = 6, kRow = Shape::code_bytes, kLanes = kRow / 16;  // lanes per key
    static_assert(1 << kShift == kKeys);

    __device__ static int lane() { return int(threadIdx.x % 32); }
    // Returns a block's page, or < 0 if there is none.
    __device__ int page_of(uint32_t block) const {
        if (!places_.pages.blocks) return int(block);
        return block < places_.pages.count
                   ? __ldg(places_.pages.blocks + block * keys_.place.table.stride_elems[1])
                   : -1;
    }
    __device__ void look(int column, int& page, uint32_t& offset) const {  // page < 0 above 2^31 - 1
        page = -1, offset = 0;
        if (column < places_.window.begin || column >= places_.window.end) return;
        const KeyColumns& place = keys_.place;
        const uint32_t block =
            page_shift_ >= 0 ? uint32_t(column) >> page_shift_ : uint32_t(column) / place.divisor;
        offset = uint32_t(column) - block * place.divisor;
        if (places_.pages.blocks || (column < place.capacity && offset < place.page_tokens))
            page = page_of(block);
    }
    __device__ bool here(int page) const { return page >= 0 && page < keys_.place.pages; }
    __device__ const char* row(int page, uint32_t offset) const {
        return keys_.data + page * keys_.page_stride + Record::row_at(offset);
    }
    __device__ const char* scale(int page, uint32_t offset) const {
        return keys_.data + page * keys_.page_stride + Record::scale_at(keys_.place.page_tokens, offset);
    }
    __device__ void copy_page(int tile, int page) const {
        if (lane()) return;
        const uint32_t stage = stages_.at(next_), barrier = stages_.full(next_);
        const uint32_t start = uint32_t(tile) * kKeys,
                       offset = start - (start >> page_shift_) * keys_.place.divisor;
        const bool comes = here(page);
        const uint32_t holes = comes ? 0 : ~0u;
        store_shared(stage + stages_.holes, uint2{holes, holes});
        mbarrier_arrive(barrier, 32);
        mbarrier_arrive_expect(barrier, comes ? kKeys * (kRow + kScaleBytes) : 0);
        if (!comes) return;
        const bool one_piece = keys_.place.page_tokens == kKeys;  // the scales follow the keys
        copy_bulk(stage, row(page, offset), kKeys * (one_piece ? kRow + kScaleBytes : kRow), barrier);
        if (!one_piece) copy_bulk(stage + stages_.scales, scale(page, offset), kKeys * kScaleBytes, barrier);
    }
    __device__ void copy_keys(int tile) const {
        const uint32_t stage = stages_.at(next_), barrier = stages_.full(next_);
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
            const int own_key = 32 * half + lane();
            int page;
            uint32_t offset;
            look(tile * kKeys + own_key, page, offset);
            const bool comes = here(page);
            const char* const own = comes ? row(page, offset) : keys_.data;
            const uint32_t holes = __ballot_sync(~0u, !comes);
            if (lane() == 0) store_shared(stage + stages_.holes + 4 * half, holes);
            cp_async_4(stage + stages_.scales + own_key * kScaleBytes, comes ? scale(page, offset) : own,
                       comes);
#pragma unroll 2
            for (int key = lane() / kLanes; key < 32; key += 32 / kLanes) {
                const uint64_t from = __shfl_sync(~0u, reinterpret_cast<uint64_t>(own), key);
                const int piece = lane() % kLanes * 16;
                cp_async_16(stage + (32 * half + key) * kRow + piece,
                            reinterpret_cast<const char*>(from) + piece, !(holes >> key & 1));
            }
        }
        mbarrier_arrive_after_copies(barrier);
        __syncwarp();
        if (lane() == 0) mbarrier_arrive(barrier);
    }

    const KeySource& keys_;
    const int page_shift_;
    const KeyStages<Shape> stages_;
    KeyPlaces& places_;
    uint32_t next_;  // number of the tile in the block
    int ahead_;      // next tile, relative to a run's first
};

// Position of a thread's part of a tile.
template <class Shape>
struct KeyPart {
    // Key whose logits the thread stores; lanes t and t + 2 have the same key.
    const uint32_t own_key = kept(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + threadIdx.x % 2 * 8);
    // Offset of the thread's first 16 bytes in the tile.
    const uint32_t at =
        kept((threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) * Shape::code_bytes + threadIdx.x % 4 * 16);
};

// A thread's part of a tile.
template <class Shape>
struct TakenKeys {
    KeyOperand<Shape::products> operand;
    float factor;            // scale of the logits of the thread's key
    bool hole, none_a_hole;  // key is masked; no key of the tile is masked
};

// Waits for the n-th tile and loads it. release_keys() must follow the first products of these keys: an
// arrival does not wait for loads, so the next tile could overwrite this one during the reads.
template <class Shape>
__device__ inline TakenKeys<Shape> take_keys(const KeyStages<Shape>& stages, const KeyPart<Shape>& part,
                                             uint32_t n) {
    TakenKeys<Shape> out;
    const uint32_t stage = stages.at(n), scales = stage + stages.scales;
    mbarrier_wait(stages.full(n), stages.phase(n));
    out.factor = Shape::products == Products::bf16 ? 1 : load_shared_f32(scales + part.own_key * kScaleBytes);
    const uint2 holes = load_shared_2(stage + stages.holes);
    out.hole = (part.own_key < 32 ? holes.x : holes.y) >> part.own_key % 32 & 1;
    out.none_a_hole = (holes.x | holes.y) == 0;
    out.operand.load(stage, part.at, scales);  // last, so that all loads are complete when products start
    return out;
}
template <class Shape>
__device__ inline void release_keys(const KeyStages<Shape>& stages, uint32_t n) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(stages.empty(n));
}

}  // namespace smla::cuda::sm90
