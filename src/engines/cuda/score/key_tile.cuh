// A warp's tile of 32 keys: copied raw into shared memory, then converted to the first operand of mma.sync in
// registers.
//
// Lane 4 g + t copies every fourth 16-byte piece, starting at piece t, of keys g, g + 8, g + 16 and g + 24,
// so a quad of lanes reads whole sectors. A lane multiplies values that it copied, so there is no barrier,
// bank conflict or shuffle. Any 4 values may share a k-step if queries have the same order (QueryOrder).
#pragma once

#include "engines/cuda/common/ptx/cp_async.cuh"
#include "engines/cuda/common/ptx/half.cuh"
#include "engines/cuda/score/columns.cuh"

namespace smla::cuda {

constexpr int kTileKeys = 32, kTileWidth = 128, kSteps = kTileWidth / 16;

using KeyOperand = uint32_t[2][kSteps][4];  // two groups of 16 keys

// Copies 4 bytes, for rows that are aligned only to 4 bytes.
__device__ inline void cp_async_4(uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0)
                 : "memory");
}

// Properties of a format: values per piece; offset of a row in its page; the scale that a lane keeps for the
// key it looked up; conversion of the 4 values of a k-step to 16-bit pairs; the factor of the finished logit.
template <smla_format Format>
struct KeyRow;

template <>
struct KeyRow<SMLA_INDEX_FP8_132> {
    using Layout = layout::IndexFp8_132;
    using Scale = float;
    static constexpr int values = 16;
    static __device__ int64_t at(uint32_t offset, int64_t) { return Layout::row_at(offset); }
    static __device__ Scale scale(const char* page, uint32_t page_tokens, uint32_t offset) {
        return f32_at(page + Layout::scale_at(page_tokens, offset));
    }
    static __device__ float factor(Scale scale) { return scale; }

    template <Half Type>
    static __device__ void pairs(const uint32_t (&words)[4], int step, uint32_t, uint32_t& low,
                                 uint32_t& high) {
        e4m3_pairs<Type>(words[step], low, high);
    }
};

template <>
struct KeyRow<SMLA_INDEX_MXFP4_68> {
    using Layout = layout::IndexMxfp4_68;
    using Scale = uint32_t;  // 4 codes, one per piece of 32 values
    static constexpr int values = 32;
    static_assert(Layout::tile == values);
    static __device__ int64_t at(uint32_t offset, int64_t) { return Layout::row_at(offset); }
    static __device__ Scale scale(const char* page, uint32_t page_tokens, uint32_t offset) {
        return *reinterpret_cast<const uint32_t*>(page + Layout::scales_at(page_tokens, offset));
    }
    static __device__ float factor(Scale) { return 1; }

    template <Half>
    static __device__ void pairs(const uint32_t (&words)[4], int step, uint32_t scale, uint32_t& low,
                                 uint32_t& high) {
        e2m1_to_bf16(words[step / 2] >> (16 * (step % 2)), scale, low, high);
    }
};

template <>
struct KeyRow<SMLA_ROW_BF16> {
    struct Scale {};
    static constexpr int values = 8;
    static __device__ int64_t at(uint32_t offset, int64_t row_stride) { return offset * row_stride; }
    static __device__ Scale scale(const char*, uint32_t, uint32_t) { return {}; }
    static __device__ float factor(Scale) { return 1; }

    template <Half>
    static __device__ void pairs(const uint32_t (&words)[4], int step, uint32_t, uint32_t& low,
                                 uint32_t& high) {
        low = words[2 * step];
        high = words[2 * step + 1];
    }
};

// Position of values 8 d8 to 8 d8 + 7 of a query: two k-steps, and t of lanes 4 g + t.
template <smla_format Format>
struct QueryOrder {
    static constexpr int eights = KeyRow<Format>::values / 8;  // per piece
    static __device__ int steps(int d8) { return d8 / (4 * eights) * eights + d8 % eights; }
    static __device__ int t(int d8) { return d8 / eights % 4; }
};

struct KeySource {
    KeyColumns place;
    const char* data;
    int64_t page_stride, row_stride;
    bool wide;  // rows are aligned to 16 bytes, otherwise to 4
};

template <smla_format Format>
class KeyTile {
    using Row = KeyRow<Format>;
    static constexpr int kPiece = 16, kPieces = kTileWidth / 4 /
                                                Row::values;  // bytes of a piece; pieces of a key per lane

public:
    static constexpr int bytes = 4 * kPieces * 32 * kPiece;  // shared memory per warp

    __device__ explicit KeyTile(char* shared)
        : lane_(int(threadIdx.x % 32)), slots_(shared + threadIdx.x % 32 * kPiece) {}

    // Returns the key of the tile that this lane looks up and whose logits it stores.
    __device__ int own_key() const { return lane_ / 4 + 8 * (lane_ % 4); }
    __device__ bool hole() const { return hole_; }
    __device__ float factor() const { return Row::factor(scale_); }

    // Starts the copy of keys 32 tile to 32 tile + 31. Keys outside of the window are not read.
    __device__ void fetch(const KeySource& keys, const KeyColumns::Pages& pages, Window window, int tile) {
        const int column = tile * kTileKeys + own_key();
        KeyColumns::Place at;
        if (window.has(column)) at = keys.place.find(pages, column);
        next_hole_ = at.page < 0;
        const char* const page = keys.data + (next_hole_ ? 0 : at.page * keys.page_stride);
        const auto row = reinterpret_cast<uint64_t>(page + Row::at(at.offset, keys.row_stride));
        if (!next_hole_) next_scale_ = Row::scale(page, keys.place.page_tokens, at.offset);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int owner = (lane_ & ~3) + i;
            const auto* const from = reinterpret_cast<const char*>(__shfl_sync(~0u, row, owner));
            const bool valid = !__shfl_sync(~0u, int(next_hole_), owner);
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece)
                copy(slot(i * kPieces + piece), from + (4 * piece + lane_ % 4) * kPiece, valid, keys.wide);
        }
        cp_async_commit();
    }

    // Waits for the copy and converts the keys. The slots may be overwritten afterwards.
    template <Half Type>
    __device__ void take(KeyOperand& a) {
        constexpr int kPieceSteps = Row::values / 4;
        cp_async_wait<0>();
        hole_ = next_hole_;
        scale_ = next_scale_;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t scale = piece_scale(i);
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) {
                const uint4 all = *reinterpret_cast<const uint4*>(slot(i * kPieces + piece));
                const uint32_t words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
                for (int step = 0; step < kPieceSteps; ++step) {
                    auto& out = a[i / 2][piece * kPieceSteps + step];
                    Row::template pairs<Type>(words, step, scale, out[i % 2], out[2 + i % 2]);
                }
            }
        }
    }

private:
    __device__ char* slot(int i) const { return slots_ + i * 32 * kPiece; }
    __device__ static void copy(char* to, const char* from, bool valid, bool wide) {
        const uint32_t shared = shared_address(to);
        if (wide) return cp_async_16(shared, from, valid);
#pragma unroll
        for (int at = 0; at < kPiece; at += 4) cp_async_4(shared + at, from + at, valid);
    }
    // Returns the scale of this lane's values of key g + 8 i, as a pair of bf16.
    __device__ uint32_t piece_scale(int i) const {
        if constexpr (Format == SMLA_INDEX_MXFP4_68)
            return e8m0_to_bf16_pair(__shfl_sync(~0u, scale_, (lane_ & ~3) + i) >> (8 * (lane_ % 4)) & 0xffu);
        return 0;
    }

    int lane_;
    char* slots_;
    bool hole_ = true, next_hole_ = true;
    typename Row::Scale scale_{}, next_scale_{};
};

}  // namespace smla::cuda
