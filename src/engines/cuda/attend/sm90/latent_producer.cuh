// Producer of attend on Hopper for fp8_656 and fp8_584: records -> bf16 keys in shared memory, in wgmma's
// layout.
#pragma once

#include "engines/cuda/attend/sm90/row_cursor.cuh"
#include "engines/cuda/common/ptx/half.cuh"

namespace smla::cuda_attend::sm90 {

__device__ inline uint4 load_16(const char* data, uint32_t place, uint32_t offset) {
    uint4 out;
    asm volatile(
        "{.reg .pred real;\n setp.ne.u32 real, %5, 0xffffffff;\n"
        "mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
        "@real ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];}"
        : "=&r"(out.x), "=&r"(out.y), "=&r"(out.z), "=&r"(out.w)
        : "l"(data + (uint64_t(place) << 4) + offset), "r"(place));
    return out;
}

// A scale * 2^80 as the sum of two bf16, in both halves of a word each.
struct SplitScale {
    uint32_t high, low;
};
// Four e4m3 codes times a scale * 2^-40, rounded once, as two pairs of bf16. The bits of a code, moved to
// where bf16 has exponent and mantissa, are its value * 2^-120, but for NaN codes. PowerOfTwo: low is 0.
template <bool PowerOfTwo>
__device__ void convert(uint32_t codes, const SplitScale& scale, uint32_t& low, uint32_t& high) {
    const auto scaled = [&](uint32_t pair) {
        const uint32_t placed = (pair & 0x7f007f00u) >> 4 | (pair & 0x80008000u);
        if (PowerOfTwo) return cuda::times_bf16(placed, scale.high);
        return cuda::fma_bf16(placed, scale.high, cuda::times_bf16(placed, scale.low));
    };
    low = scaled(__byte_perm(codes, 0, 0x1404)), high = scaled(__byte_perm(codes, 0, 0x3424));
}
// Bit 7 of a byte: its code is NaN. Other bits are noise.
__device__ inline uint32_t nan_codes(uint32_t codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; }

// The scales of the key that a lane follows. of_piece: those of piece `piece` of a half of the columns, of
// the key that lane `from` follows.
template <class Format>
class Scales;

template <>
class Scales<Latents656> {  // four f32, of 128 columns each
public:
    using Loaded = uint4;
    static __device__ Loaded load(const char* data, uint32_t place, uint32_t) {
        return load_16(data, place, layout::Fp8_656::scales_at);
    }
    __device__ void set(const Loaded& bits) {
        of_[0] = split(__uint_as_float(bits.x) * 0x1p80f, __uint_as_float(bits.y) * 0x1p80f);
        of_[1] = split(__uint_as_float(bits.z) * 0x1p80f, __uint_as_float(bits.w) * 0x1p80f);
    }
    __device__ SplitScale of_piece(uint32_t half, uint32_t piece, uint32_t from) const {
        const uint32_t pick = piece / 8 ? 0x3232 : 0x1010;
        return {__byte_perm(__shfl_sync(~0u, half ? of_[1].high : of_[0].high, from), 0, pick),
                __byte_perm(__shfl_sync(~0u, half ? of_[1].low : of_[0].low, from), 0, pick)};
    }

private:
    static __device__ SplitScale split(float a, float b) {  // two scales in each word
        const uint32_t high = cuda::keep(cuda::pack_bf16(a, b));
        return {high, cuda::keep(cuda::pack_bf16(a - __uint_as_float(high << 16),
                                                 b - __uint_as_float(high & 0xffff0000u)))};
    }
    SplitScale of_[2];  // of columns 0 to 255 and 256 to 511
};

template <>
class Scales<Latents584> {  // seven E8M0 codes, of 64 columns each
public:
    using Loaded = uint2;
    static __device__ Loaded load(const char* data, uint32_t place, uint32_t scales_place) {
        Loaded out = {0, 0};
        if (place != kHole) out = *reinterpret_cast<const uint2*>(data + (uint64_t(scales_place) << 3));
        return out;
    }
    __device__ void set(const Loaded& codes) { of_[0] = cuda::keep(codes.x), of_[1] = cuda::keep(codes.y); }
    __device__ SplitScale of_piece(uint32_t half, uint32_t piece, uint32_t from) const {
        const uint32_t word = __shfl_sync(~0u, half ? of_[1] : of_[0], from),
                       code = word >> (piece / 4 * 8) & 255;
        const uint32_t bits = min(code + 80, 255u) << 7 | (code == 255 ? 0x40u : 0u);  // 255: NaN
        return {bits * 0x10001u, 0};
    }

private:
    uint32_t of_[2];
};

template <class Format, int Cluster>
class LatentProducer {
public:
    __device__ LatentProducer(const Arguments& args, const Tasks& tasks, const KeySources& keys,
                              uint32_t base)
        : cursor_(args, tasks, keys),
          keys_(keys),
          base_(base),
          lane_(threadIdx.x % 32),
          warp_((threadIdx.x / 32) % 4),
          piece_(lane_ % 16),
          peer_(Cluster == 2 ? cuda::in_block(base, cuda::cluster_rank() ^ 1) - base : 0) {
        const uint32_t row = first_key() + lane_ / 16;
        stores_ = base + kKeysAt + piece_ / 8 * 2 * kTileBytes + row * 128;
        chunk_ = (piece_ % 8 ^ row % 8) << 4;
    }

    __device__ void run() {
        Pending now = resolve(cursor_.next()), next = resolve(cursor_.next()),
                after = resolve(cursor_.next());
        Scales<Format> scales;
        scales.set(load_scales(now));
        if (Format::early_rope) copy_rope(now, base_ + kRingAt, base_ + kRopeFullAt);
        prefetch(next);
#pragma unroll
        for (int e = 0; e < kAhead; e += kPieces) load_pieces(e, now, uint32_t(e / kPieces));
#pragma unroll 1
        for (int tile = 0; tile < cursor_.given(); ++tile) {
            const uint32_t stage = uint32_t(tile) & 1, phase = (uint32_t(tile) >> 1 & 1) ^ 1;
            typename Scales<Format>::Loaded next_scales;
            int row = -1;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const uint32_t half = stage ^ uint32_t(n), full = base_ + kKeysFullAt + 16 * stage + 8 * half,
                               to = stage * kStageBytes + half * kHalfBytes;
                cuda::mbarrier_wait(base_ + kKeysEmptyAt + 16 * stage + 8 * half, phase);
                if (n == 0) note_valid(base_, stage, now.place);
                if (!Format::early_rope && half == 1)
                    copy_rope(now, base_ + kKeysAt + to + 3 * kTileBytes, full);
                store_half(n, half, to, full, scales);
                if (n == 1) {
                    // Used here, before new loads start: a scoreboard that they share would wait for those
                    // too.
                    scales.set(next_scales);
                    now = next, next = after, after = resolve(row);
                    after.place = cuda::keep(after.place);
                }
                // kAhead pieces further: the other half of this tile, or a half of the next
                const int e = n * kPieces + kAhead;
                if (e < 2 * kPieces) load_pieces(e, now, half ^ 1);
                else
                    load_pieces(e - 2 * kPieces, n ? now : next,
                                uint32_t((e - 2 * kPieces) / kPieces) ^ stage ^ 1);
                if (Format::early_rope && n == 1 && tile + 1 < cursor_.given()) {
                    const uint32_t slot = uint32_t(tile + 1) % 3;
                    copy_rope(now, base_ + kRingAt + slot * kTileBytes, base_ + kRopeFullAt + 8 * slot);
                }
                if (n == 0) {
                    next_scales = load_scales(next);
                    row = cursor_.next();
                    prefetch(after);
                }
            }
        }
    }

private:
    static constexpr int kRows = 16 / Cluster,
                         kPieces = kRows / 2;  // keys of a warp; 16-byte pieces of a lane
    static constexpr int kAhead = 8;           // pieces in registers ahead of their conversion

    __device__ uint32_t first_key() const {
        return Cluster == 2 ? 8 * (4 * (blockIdx.x % 2) + warp_) : 16 * warp_;
    }
    // The lane that follows the key of piece i of this lane.
    __device__ uint32_t lane_of(int i) const {
        return (Cluster == 2 ? 16u : 0u) + uint32_t(2 * i) + lane_ / 16;
    }

    struct Pending {  // of the key that a lane follows
        uint32_t place, scales;
        bool extra;
    };
    __device__ Pending resolve(int row) const {
        const bool extra = cursor_.extra();
        return {cursor_.place(row, extra), Format::codes == 448 ? cursor_.scales_place(row, extra) : 0,
                extra};
    }
    __device__ const char* data(const Pending& keys) const {
        return keys_.of[Format::sources == 2 && keys.extra].data;
    }
    // Pieces from e on of a tile: 16 codes of a key each, from the left or right half of the columns.
    __device__ void load_pieces(int e, const Pending& keys, uint32_t half) {
        uint32_t place[kPieces];
#pragma unroll
        for (int i = 0; i < kPieces; ++i) place[i] = __shfl_sync(~0u, keys.place, lane_of(i));
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            raw_[e + i] = load_16(data(keys), holds_codes(half) ? place[i] : kHole, half * 256 + piece_ * 16);
    }
    __device__ bool holds_codes(uint32_t half) const {
        return Format::codes == 512 || half == 0 || piece_ < uint32_t(Format::codes - 256) / 16;
    }
    __device__ typename Scales<Format>::Loaded load_scales(const Pending& keys) const {
        const bool own = Cluster == 1 || lane_ >= 16;
        return Scales<Format>::load(data(keys), own ? keys.place : kHole, keys.scales);
    }
    __device__ void prefetch(const Pending& keys) const {
        const uint32_t place = __shfl_sync(~0u, keys.place, 32 - kRows + lane_ % kRows);
        constexpr uint32_t kBytes = Format::codes + 128, kLanes = 32 / kRows, kShare = 672 / kLanes,
                           kStep = kRows == 8 ? 84 : 112;
        if (place == kHole) return;
#pragma unroll
        for (uint32_t at = 0; at < kShare; at += kStep) {
            const uint32_t offset = min(lane_ / kRows * kShare + at, kBytes - 1);
            asm volatile("prefetch.global.L2 [%0];" ::"l"(data(keys) + (uint64_t(place) << 4) + offset));
        }
    }
    // bf16 columns of the warp's 16 keys, to the tile at `tile`.
    __device__ void copy_rope(const Pending& keys, uint32_t tile, uint32_t barrier) const {
        constexpr uint32_t kFrom = Format::codes == 448 ? layout::Fp8_584::rope_at : layout::Fp8_656::rope_at;
        // computed here, not kept: saves a register
        const uint32_t thread = cuda::keep(threadIdx.x) % 128, row = thread / 32 * 16 + thread / 8 % 4,
                       to = tile + chunk_at(row, thread % 8);
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
            const uint32_t place = __shfl_sync(~0u, keys.place, 4 * k + lane_ / 8);
            cuda::cp_async_16((to + k * 512) ^ ((4 * k & 7) << 4),
                              data(keys) + (uint64_t(place) << 4) + kFrom + lane_ % 8 * 16, place != kHole);
        }
        cuda::mbarrier_arrive_after_copies(barrier);
    }
    // Converts pieces i to i + 3 of half a tile, whose pieces are raw_[first] and on. Behind natural_from a
    // piece becomes two neighbouring chunks of one tile.
    __device__ void store_pieces(int first, int i, uint32_t half, uint32_t to, uint32_t full,
                                 const Scales<Format>& scales) {
        const bool natural = Format::natural_from < 512 && half == 1 && piece_ >= 8;
        const uint32_t chunk = natural ? chunk_ ^ ((piece_ % 8 ^ 2 * (piece_ % 8)) << 4) : chunk_;
        SplitScale own[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) own[k] = scales.of_piece(half, piece_, lane_of(i + k));
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            constexpr bool kPowerOfTwo = Format::codes == 448;
            const uint4& codes = raw_[first + i + k];
            uint4 low, high;
            const uint32_t nan =
                (nan_codes(codes.x) | nan_codes(codes.y)) | (nan_codes(codes.z) | nan_codes(codes.w));
            if (nan & 0x80808080u) own[k].high = 0x7fff7fffu;
            convert<kPowerOfTwo>(codes.x, own[k], low.x, low.y),
                convert<kPowerOfTwo>(codes.y, own[k], low.z, low.w);
            convert<kPowerOfTwo>(codes.z, own[k], high.x, high.y),
                convert<kPowerOfTwo>(codes.w, own[k], high.z, high.w);
            const uint32_t at = stores_ + to + uint32_t(i + k) * 256 +
                                (chunk ^ ((2 * uint32_t(i + k) & 7) << 4)),
                           second = natural ? at ^ 16 : at + kTileBytes;
            if (!holds_codes(half)) continue;
            cuda::store_shared(at, low), cuda::store_shared(second, high);
            if constexpr (Cluster == 2) {
                cuda::store_async(at + peer_, full + peer_, low);
                cuda::store_async(second + peer_, full + peer_, high);
            }
        }
    }
    // Converts and stores half of the columns of the warp's keys, here and in the other block.
    __device__ void store_half(int n, uint32_t half, uint32_t to, uint32_t full,
                               const Scales<Format>& scales) {
#pragma unroll
        for (int i = 0; i < kPieces; i += 4) store_pieces(n * kPieces, i, half, to, full, scales);
        cuda::fence_async_proxy();
        __syncwarp();
        if (lane_ != 0) return;
        const int columns = Format::codes == 512 || half == 0 ? 256 : Format::codes - 256;
        if constexpr (Cluster == 2) cuda::mbarrier_arrive_expect(full, kRows * 2 * columns);
        else cuda::mbarrier_arrive(full);
    }

    RowCursor<Format, Cluster> cursor_;
    const KeySources& keys_;
    const uint32_t base_, lane_, warp_, piece_, peer_;
    uint32_t stores_, chunk_;
    uint4 raw_[2 * kPieces];
};

}  // namespace smla::cuda_attend::sm90
