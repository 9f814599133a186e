// 32 keys on their way to a warp's registers: copied as stored, by the lanes that will multiply them, and
// turned into the rows operand of mma.sync.
//
// Lane 4 g + t holds, of keys g, g + 8, g + 16, g + 24, the values 16 t .. 16 t + 15 and 64 + 16 t .. + 15.
// An mma step takes 4 of them: which values meet in a step does not matter as long as queries are ordered
// alike, so a lane reads whole 16-value chunks and nothing is shuffled. Slots of shared memory belong to one
// lane each: no barrier, no bank conflict.
#pragma once

#include "engines/cuda_common/ptx/cp_async.cuh"
#include "engines/cuda_common/ptx/half.cuh"
#include "engines/cuda_mma/score/columns.cuh"

namespace smla::cuda {

constexpr int kTileKeys = 32, kTileWidth = 128, kSteps = kTileWidth / 16;

using KeyOperand = uint32_t[2][kSteps][4];  // of two groups of 16 keys

// The words of rows that lie at no better multiple.
__device__ inline void cp_async_4(uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0)
                 : "memory");
}

// One format each: bytes of 16 values, where a row lies, what a lane keeps of the key it looked up (`Scale`),
// how a chunk becomes 16-bit pairs, and the factor that a logit gets last.
template <smla_format Format>
struct KeyRow;

template <>
struct KeyRow<SMLA_INDEX_FP8_132> {
    using Layout = layout::IndexFp8_132;
    using Scale = float;
    static constexpr int chunk = 16, piece = 16;
    static __device__ int64_t at(uint32_t offset, int64_t) { return Layout::row_at(offset); }
    static __device__ Scale scale(const char* page, uint32_t page_tokens, uint32_t offset) {
        return f32_at(page + Layout::scale_at(page_tokens, offset));
    }
    static __device__ float factor(Scale scale) { return scale; }

    template <Half Type>
    static __device__ void pair(const uint32_t (&words)[4], int step, uint32_t, uint32_t& low,
                                uint32_t& high) {
        e4m3_pairs<Type>(words[step], low, high);
    }
    static __device__ uint32_t group_scale(Scale, int) { return 0; }
};

template <>
struct KeyRow<SMLA_INDEX_MXFP4_68> {
    using Layout = layout::IndexMxfp4_68;
    using Scale = uint32_t;  // 4 codes, one per 32 values
    static constexpr int chunk = 8, piece = 8;
    static __device__ int64_t at(uint32_t offset, int64_t) { return Layout::row_at(offset); }
    static __device__ Scale scale(const char* page, uint32_t page_tokens, uint32_t offset) {
        return *reinterpret_cast<const uint32_t*>(page + Layout::scales_at(page_tokens, offset));
    }
    static __device__ float factor(Scale) { return 1; }

    template <Half>
    static __device__ void pair(const uint32_t (&words)[2], int step, uint32_t scale, uint32_t& low,
                                uint32_t& high) {
        const uint32_t codes = words[step / 2] >> (16 * (step & 1));
        low = e2m1_to_bf16(codes & 0xffu, scale);
        high = e2m1_to_bf16(codes >> 8 & 0xffu, scale);
    }
    static __device__ uint32_t group_scale(Scale codes, int group) { return codes >> (8 * group) & 0xffu; }
};

template <>
struct KeyRow<SMLA_ROW_BF16> {
    struct Scale {};
    static constexpr int chunk = 32, piece = 16;
    static __device__ int64_t at(uint32_t offset, int64_t row_stride) { return offset * row_stride; }
    static __device__ Scale scale(const char*, uint32_t, uint32_t) { return {}; }
    static __device__ float factor(Scale) { return 1; }

    template <Half>
    static __device__ void pair(const uint32_t (&words)[8], int step, uint32_t, uint32_t& low,
                                uint32_t& high) {
        low = words[2 * step];
        high = words[2 * step + 1];
    }
    static __device__ uint32_t group_scale(Scale, int) { return 0; }
};

// Where keys lie; a kernel parameter.
struct KeySource {
    KeyColumns place;
    const char* data;
    int64_t page_stride, row_stride;
    bool wide;  // rows lie at multiples of a piece, else of 4 bytes
};

template <smla_format Format>
class KeyTile {
    using Row = KeyRow<Format>;
    static constexpr int kPieces = Row::chunk / Row::piece, kSlots = 8 * kPieces;  // 4 keys x 2 chunks

public:
    static constexpr int bytes = kSlots * 32 * Row::piece;  // of shared memory, per warp

    __device__ explicit KeyTile(char* shared)
        : lane_(int(threadIdx.x % 32)), slots_(shared + threadIdx.x % 32 * Row::piece) {}

    // The key of a tile whose logit this lane finishes.
    __device__ int own_key() const { return lane_ / 4 + 8 * (lane_ % 4); }
    __device__ bool hole() const { return hole_; }
    __device__ float factor() const { return Row::factor(scale_); }

    // Starts to copy keys [32 tile, 32 tile + 32); those outside the window are not read.
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
            const uint64_t from = __shfl_sync(~0u, row, owner);
            const bool valid = !__shfl_sync(~0u, int(next_hole_), owner);
#pragma unroll
            for (int piece = 0; piece < 2 * kPieces; ++piece) {
                const int at_value = piece / kPieces * (kTileWidth / 2) + 16 * (lane_ % 4);
                const int at_byte = at_value * Row::chunk / 16 + piece % kPieces * Row::piece;
                copy(slot(i * 2 * kPieces + piece), reinterpret_cast<const char*>(from) + at_byte, valid,
                     keys.wide);
            }
        }
        cp_async_commit();
    }

    // Waits for the keys and hands them over; the slots are free afterwards.
    template <Half Type>
    __device__ void take(KeyOperand& a) {
        cp_async_wait<0>();
        hole_ = next_hole_;
        scale_ = next_scale_;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                uint32_t words[Row::chunk / 4];
#pragma unroll
                for (int piece = 0; piece < kPieces; ++piece)
                    load(slot((2 * i + half) * kPieces + piece), words + piece * Row::piece / 4);
                const uint32_t scale = group_scale(i, 2 * half + lane_ % 4 / 2);
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    auto& out = a[i / 2][4 * half + step];
                    Row::template pair<Type>(words, step, scale, out[i % 2], out[2 + i % 2]);
                }
            }
    }

private:
    __device__ char* slot(int i) const { return slots_ + i * 32 * Row::piece; }
    __device__ static void copy(char* to, const char* from, bool valid, bool wide) {
        const uint32_t shared = shared_address(to);
        if (!wide) {
#pragma unroll
            for (int at = 0; at < Row::piece; at += 4) cp_async_4(shared + at, from + at, valid);
        } else if constexpr (Row::piece == 16) {
            cp_async_16(shared, from, valid);
        } else {
            cp_async_8(shared, from, valid);
        }
    }
    __device__ static void load(const char* from, uint32_t* words) {
        if constexpr (Row::piece == 16) {
            const uint4 all = *reinterpret_cast<const uint4*>(from);
            words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
        } else {
            const uint2 all = *reinterpret_cast<const uint2*>(from);
            words[0] = all.x, words[1] = all.y;
        }
    }
    __device__ uint32_t group_scale(int i, int group) const {
        if constexpr (Format == SMLA_INDEX_MXFP4_68)
            return Row::group_scale(__shfl_sync(~0u, scale_, (lane_ & ~3) + i), group);
        return 0;
    }

    int lane_;
    char* slots_;
    bool hole_ = true, next_hole_ = true;
    typename Row::Scale scale_{}, next_scale_{};
};

}  // namespace smla::cuda
