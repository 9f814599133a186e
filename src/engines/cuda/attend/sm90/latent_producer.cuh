// Producer of attend on Hopper for fp8_656: records -> bf16 keys in shared memory, in wgmma's layout.
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
// where bf16 has exponent and mantissa, are its value * 2^-120, but for NaN codes.
__device__ inline void convert(uint32_t codes, const SplitScale& scale, uint32_t& low, uint32_t& high) {
    const auto scaled = [&](uint32_t pair) {
        const uint32_t placed = (pair & 0x7f007f00u) >> 4 | (pair & 0x80008000u);
        return cuda::fma_bf16(placed, scale.high, cuda::times_bf16(placed, scale.low));
    };
    low = scaled(__byte_perm(codes, 0, 0x1404)), high = scaled(__byte_perm(codes, 0, 0x3424));
}
// Bit 7 of a byte: its code is NaN. Other bits are noise.
__device__ inline uint32_t nan_codes(uint32_t codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; }

template <int Cluster>
class LatentProducer {
public:
    __device__ LatentProducer(const Arguments& args, const Tasks& tasks, const KeySources& keys,
                              uint32_t base)
        : cursor_(args, tasks, keys),
          data_(keys.of[0].data),
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
        uint32_t now = cursor_.place(cursor_.next(), false), next = cursor_.place(cursor_.next(), false),
                 after = cursor_.place(cursor_.next(), false);
        SplitScale scales[2];  // of columns 0 to 255 and 256 to 511; two in each word
        split(load_scales(now), scales);
        copy_rope(0, now);
        prefetch(next);
#pragma unroll
        for (int e = 0; e < kAhead; e += kPieces) load_pieces(e, now, uint32_t(e / kPieces));
#pragma unroll 1
        for (int tile = 0; tile < cursor_.given(); ++tile) {
            const uint32_t stage = uint32_t(tile) & 1, phase = (uint32_t(tile) >> 1 & 1) ^ 1;
            float4 next_scales;
            int row = -1;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const uint32_t half = stage ^ uint32_t(n);
                cuda::mbarrier_wait(base_ + kKeysEmptyAt + 16 * stage + 8 * half, phase);
                if (n == 0) note_valid(base_, stage, now);
                store_half(n, stage, half,
                           {half ? scales[1].high : scales[0].high, half ? scales[1].low : scales[0].low});
                if (n == 1) {
                    // Used here, before new loads start: a scoreboard that they share would wait for those
                    // too.
                    split(next_scales, scales);
                    now = next, next = after, after = cuda::keep(cursor_.place(row, false));
#pragma unroll
                    for (SplitScale& each : scales)
                        each.high = cuda::keep(each.high), each.low = cuda::keep(each.low);
                }
                // kAhead pieces further: the other half of this tile, or a half of the next
                const int e = n * kPieces + kAhead;
                if (e < 2 * kPieces) load_pieces(e, now, half ^ 1);
                else
                    load_pieces(e - 2 * kPieces, n ? now : next,
                                uint32_t((e - 2 * kPieces) / kPieces) ^ stage ^ 1);
                if (n == 1 && tile + 1 < cursor_.given()) copy_rope(uint32_t(tile + 1) % 3, now);
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

    // Pieces from e on of a tile: 16 codes of a key each, from the left or right half of the columns.
    __device__ void load_pieces(int e, uint32_t places, uint32_t half) {
        uint32_t place[kPieces];
#pragma unroll
        for (int i = 0; i < kPieces; ++i) place[i] = __shfl_sync(~0u, places, lane_of(i));
#pragma unroll
        for (int i = 0; i < kPieces; ++i) raw_[e + i] = load_16(data_, place[i], half * 256 + piece_ * 16);
    }
    __device__ float4 load_scales(uint32_t places) const {
        const bool own = Cluster == 1 || lane_ >= 16;
        const uint4 bits = load_16(data_, own ? places : kHole, layout::Fp8_656::scales_at);
        return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                           __uint_as_float(bits.w));
    }
    __device__ void split(const float4& scales, SplitScale (&split)[2]) {
        split[0] = split_pair(scales.x * 0x1p80f, scales.y * 0x1p80f);
        split[1] = split_pair(scales.z * 0x1p80f, scales.w * 0x1p80f);
    }
    static __device__ SplitScale split_pair(float a, float b) {
        const uint32_t high = cuda::pack_bf16(a, b);
        return {high,
                cuda::pack_bf16(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xffff0000u))};
    }
    __device__ void prefetch(uint32_t places) const {
        const uint32_t place = __shfl_sync(~0u, places, 32 - kRows + lane_ % kRows);
        constexpr uint32_t kLanes = 32 / kRows, kShare = 672 / kLanes, kStep = kRows == 8 ? 84 : 112;
        if (place == kHole) return;
#pragma unroll
        for (uint32_t at = 0; at < kShare; at += kStep) {
            const uint32_t offset = min(lane_ / kRows * kShare + at, 640u);
            asm volatile("prefetch.global.L2 [%0];" ::"l"(data_ + (uint64_t(place) << 4) + offset));
        }
    }
    __device__ void copy_rope(uint32_t slot, uint32_t places) const {
        // computed here, not kept: saves a register
        const uint32_t thread = cuda::keep(threadIdx.x) % 128, row = thread / 32 * 16 + thread / 8 % 4,
                       to = base_ + kRingAt + slot * kTileBytes + chunk_at(row, thread % 8);
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
            const uint32_t place = __shfl_sync(~0u, places, 4 * k + lane_ / 8);
            cuda::cp_async_16((to + k * 512) ^ ((4 * k & 7) << 4),
                              data_ + (uint64_t(place) << 4) + layout::Fp8_656::rope_at + lane_ % 8 * 16,
                              place != kHole);
        }
        cuda::mbarrier_arrive_after_copies(base_ + kRopeFullAt + 8 * slot);
    }
    // Converts pieces i to i + 3 of half a tile, whose pieces are raw_[first] and on.
    __device__ void store_pieces(int first, int i, uint32_t to, uint32_t full, const SplitScale& scales) {
        SplitScale own[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const uint32_t pick = piece_ / 8 ? 0x3232 : 0x1010;
            own[k].high = __byte_perm(__shfl_sync(~0u, scales.high, lane_of(i + k)), 0, pick);
            own[k].low = __byte_perm(__shfl_sync(~0u, scales.low, lane_of(i + k)), 0, pick);
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const uint4& codes = raw_[first + i + k];
            uint4 low, high;
            const uint32_t nan =
                (nan_codes(codes.x) | nan_codes(codes.y)) | (nan_codes(codes.z) | nan_codes(codes.w));
            if (nan & 0x80808080u) own[k].high = 0x7fff7fffu;
            convert(codes.x, own[k], low.x, low.y), convert(codes.y, own[k], low.z, low.w);
            convert(codes.z, own[k], high.x, high.y), convert(codes.w, own[k], high.z, high.w);
            const uint32_t at = to + uint32_t(i + k) * 256 + (chunk_ ^ ((2 * uint32_t(i + k) & 7) << 4));
            cuda::store_shared(at, low), cuda::store_shared(at + kTileBytes, high);
            if constexpr (Cluster == 2) {
                cuda::store_async(at + peer_, full + peer_, low);
                cuda::store_async(at + kTileBytes + peer_, full + peer_, high);
            }
        }
    }
    // Converts and stores half of the columns of the warp's keys, here and in the other block.
    __device__ void store_half(int n, uint32_t stage, uint32_t half, const SplitScale& scales) {
        const uint32_t to = stores_ + stage * kStageBytes + half * kHalfBytes,
                       full = base_ + kKeysFullAt + 16 * stage + 8 * half;
#pragma unroll
        for (int i = 0; i < kPieces; i += 4) store_pieces(n * kPieces, i, to, full, scales);
        cuda::fence_async_proxy();
        __syncwarp();
        if (lane_ != 0) return;
        if constexpr (Cluster == 2) cuda::mbarrier_arrive_expect(full, kRows * 512);
        else cuda::mbarrier_arrive(full);
    }
    RowCursor<Latents, Cluster> cursor_;
    const char* const data_;
    const uint32_t base_, lane_, warp_, piece_, peer_;
    uint32_t stores_, chunk_;
    uint4 raw_[2 * kPieces];
};

}  // namespace smla::cuda_attend::sm90
