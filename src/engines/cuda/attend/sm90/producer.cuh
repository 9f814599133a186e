// Producer of attend on Hopper: fp8_656 records -> bf16 keys in shared memory, in wgmma's layout.
#pragma once

#include "engines/cuda/attend/sm90/config.h"
#include "engines/cuda/common/ptx/half.cuh"

namespace smla::cuda_attend::sm90 {

constexpr uint32_t kHole = ~0u;

// The row numbers of one producer warp, a tile after the other, through all tasks of its block. Lanes 0 to 15
// follow the 16 keys whose rope the warp copies. Lanes 16 to 31 follow the keys that it converts: with a
// cluster 8 (twice), which it stores in both blocks, else the same 16.
template <int Cluster>
class RowCursor {
public:
    __device__ RowCursor(const Arguments& args, const Tasks& tasks, const Keys& keys)
        : args_(args), tasks_(tasks), keys_(keys), task_(int(blockIdx.x / Cluster)) {
        if (task_ < tasks_.count) enter();
    }
    // Starts to load the row number of the next tile; -1 past the end of a list or of the tasks.
    __device__ int next() {
        if (tiles_ == 0 && task_ < tasks_.count) {
            task_ += int(gridDim.x / Cluster);
            if (task_ < tasks_.count) enter();
        }
        if (tiles_ == 0) return -1;
        --tiles_, ++given_;
        const int row = left_ > 0 ? __ldg(at_) : -1;
        at_ += kKeys * args_.sources[0].rows.stride_elems[1];
        left_ -= kKeys;
        return row;
    }
    __device__ int given() const { return given_; }  // tiles so far
    // Place of a record in units of 16 bytes, or kHole.
    __device__ uint32_t place(int row) const {
        const Source& source = args_.sources[0];
        const uint32_t page = source.page_rows.quotient(uint32_t(row)),
                       token = uint32_t(row) - page * source.page_rows.by;
        const bool valid = uint32_t(row) < source.rows_below && token < uint32_t(source.cache.page_tokens);
        return valid ? page * keys_.page_16 + token * keys_.row_16 : kHole;
    }

private:
    __device__ void enter() {
        const Task task(tasks_, task_, kHeads * Cluster);
        const TileRange range(args_, tasks_, task);
        const Source& source = args_.sources[0];
        const uint32_t lane = threadIdx.x % 32, warp = (threadIdx.x / 32) % 4;
        const uint32_t key =
            Cluster == 1 || lane < 16 ? 16 * warp + lane % 16 : 8 * (4 * (blockIdx.x % 2) + warp) + lane % 8;
        const int entry = range.first * kKeys + int(key);
        tiles_ = range.count();
        left_ = int(source.length(task.token)) - entry;
        at_ = static_cast<const int*>(source.rows.data) + cuda::element(source.rows, task.token, entry);
    }

    const Arguments& args_;
    const Tasks& tasks_;
    const Keys& keys_;
    const int* at_ = nullptr;
    int task_, tiles_ = 0, left_ = 0, given_ = 0;
};

__device__ inline uint4 load_16(const char* data, uint32_t place, uint32_t offset) {
    uint4 out;
    asm volatile(
        "{.reg .pred real;\n setp.ne.u32 real, %5, 0xffffffff;\n"
        "mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
        "@real ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];}"
        : "=&r"(out.x), "=&r"(out.y), "=&r"(out.z), "=&r"(out.w)
        : "l"(data + (uint64_t(place) << 4) + offset), "r"(place));
    return out;
}

// A scale * 2^120 as the sum of two bf16, in both halves of a word each.
struct SplitScale {
    uint32_t high, low;
};
// Four e4m3 codes times a scale, rounded once, as two pairs of bf16. The bits of a code, moved to where bf16
// has exponent and mantissa, are its value * 2^-120, but for NaN codes.
__device__ inline void convert(uint32_t codes, const SplitScale& scale, uint32_t& low, uint32_t& high) {
    const auto scaled = [&](uint32_t pair) {
        const uint32_t placed = (pair & 0x7f007f00u) >> 4 | (pair & 0x80008000u);
        return cuda::fma_bf16(placed, scale.high, cuda::times_bf16(placed, scale.low));
    };
    low = scaled(__byte_perm(codes, 0, 0x1404)), high = scaled(__byte_perm(codes, 0, 0x3424));
}
// The same for any code and any scale.
__device__ inline void convert_any(uint32_t codes, float scale, uint32_t& low, uint32_t& high) {
    uint32_t pairs[2];
    cuda::e4m3_to_f16(codes, pairs[0], pairs[1]);
    low = cuda::pack_bf16(cuda::f16_low(pairs[0]) * scale, cuda::f16_high(pairs[0]) * scale);
    high = cuda::pack_bf16(cuda::f16_low(pairs[1]) * scale, cuda::f16_high(pairs[1]) * scale);
}
// Bit 7 of a byte: its code is NaN. Other bits are noise.
__device__ inline uint32_t nan_codes(uint32_t codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; }

template <int Cluster>
class Producer {
public:
    __device__ Producer(const Arguments& args, const Tasks& tasks, const Keys& keys, uint32_t base)
        : cursor_(args, tasks, keys),
          data_(keys.data),
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
        uint32_t now = cursor_.place(cursor_.next()), next = cursor_.place(cursor_.next()),
                 after = cursor_.place(cursor_.next());
        SplitScale scales[2], next_split[2];  // of columns 0 to 255 and 256 to 511; two in each word
        split(load_scales(now), scales);
        copy_rope(0, now);
        prefetch(next);
#pragma unroll
        for (int e = 0; e < kAhead; ++e) load(e, now, uint32_t(e / kPieces));
#pragma unroll 1
        for (int tile = 0; tile < cursor_.given(); ++tile) {
            const float4 next_scales = load_scales(next);
            const int row = cursor_.next();
            prefetch(after);
            const uint32_t stage = uint32_t(tile) & 1, phase = (uint32_t(tile) >> 1 & 1) ^ 1;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const uint32_t half = stage ^ uint32_t(n);
                cuda::mbarrier_wait(base_ + kKeysEmptyAt + 16 * stage + 8 * half, phase);
                if (n == 0) note_valid(stage, now);
                if (n == 1 && tile + 1 < cursor_.given()) copy_rope(uint32_t(tile + 1) % 3, next);
                store_half(n, stage, half, now,
                           {half ? scales[1].high : scales[0].high, half ? scales[1].low : scales[0].low});
                if (n == 0) split(next_scales, next_split);
#pragma unroll
                for (int i = 0; i < kPieces; ++i) {
                    const int e = n * kPieces + i + kAhead;
                    if (e < 2 * kPieces) load(e, now, half ^ 1);
                    else load(e - 2 * kPieces, next, uint32_t((e - 2 * kPieces) / kPieces) ^ stage ^ 1);
                }
            }
            scales[0] = next_split[0], scales[1] = next_split[1];
            now = next, next = after, after = cursor_.place(row);
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

    // Piece e of a tile: 16 codes of a key, from the left or right half of the columns.
    __device__ void load(int e, uint32_t places, uint32_t half) {
        const uint32_t place = __shfl_sync(~0u, places, lane_of(e % kPieces));
        raw_[e] = load_16(data_, place, half * 256 + piece_ * 16);
    }
    __device__ float4 load_scales(uint32_t places) const {
        const bool own = Cluster == 1 || lane_ >= 16;
        const uint4 bits = load_16(data_, own ? places : kHole, layout::Fp8_656::scales_at);
        return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                           __uint_as_float(bits.w));
    }
    static __device__ void split(const float4& scales, SplitScale (&split)[2]) {
        split[0] = split_pair(scales.x * 0x1p120f, scales.y * 0x1p120f);
        split[1] = split_pair(scales.z * 0x1p120f, scales.w * 0x1p120f);
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
    // Which of the warp's 16 keys of the tile are no holes.
    __device__ void note_valid(uint32_t stage, uint32_t places) const {
        const uint32_t valid = __ballot_sync(~0u, places != kHole) & 0xffff;
        if (lane_ == 0)
            asm volatile("st.shared.u16 [%0], %1;" ::"r"(base_ + kValidAt + 8 * stage + 2 * warp_),
                         "h"(uint16_t(valid))
                         : "memory");
    }
    // Converts and stores half of the columns of the warp's keys, here and in the other block.
    __device__ void store_half(int n, uint32_t stage, uint32_t half, uint32_t places,
                               const SplitScale& scales) {
        const uint32_t to = stores_ + stage * kStageBytes + half * kHalfBytes,
                       full = base_ + kKeysFullAt + 16 * stage + 8 * half;
        uint32_t odd = ((scales.high & 0x7fff7fffu) + 0x00800080u) & 0x80008000u, nan = 0;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const uint4& codes = raw_[n * kPieces + i];
            nan |= nan_codes(codes.x) | nan_codes(codes.y);
            nan |= nan_codes(codes.z) | nan_codes(codes.w);
        }
        const bool plain = !__any_sync(~0u, (odd | (nan & 0x80808080u)) != 0);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const uint4& codes = raw_[n * kPieces + i];
            uint4 low, high;
            if (plain) {
                const auto of_piece = [&](uint32_t word) {
                    return __byte_perm(__shfl_sync(~0u, word, lane_of(i)), 0, piece_ / 8 ? 0x3232 : 0x1010);
                };
                const SplitScale own = {of_piece(scales.high), of_piece(scales.low)};
                convert(codes.x, own, low.x, low.y), convert(codes.y, own, low.z, low.w);
                convert(codes.z, own, high.x, high.y), convert(codes.w, own, high.z, high.w);
            } else {
                const uint32_t place = __shfl_sync(~0u, places, lane_of(i));
                const float own = place == kHole ? 0.f : scale_at(place, 2 * half + piece_ / 8);
                convert_any(codes.x, own, low.x, low.y), convert_any(codes.y, own, low.z, low.w);
                convert_any(codes.z, own, high.x, high.y), convert_any(codes.w, own, high.z, high.w);
            }
            const uint32_t at = to + uint32_t(i) * 256 + (chunk_ ^ ((2 * uint32_t(i) & 7) << 4));
            cuda::store_shared(at, low), cuda::store_shared(at + kTileBytes, high);
            if constexpr (Cluster == 2) {
                cuda::store_async(at + peer_, full + peer_, low);
                cuda::store_async(at + kTileBytes + peer_, full + peer_, high);
            }
        }
        cuda::fence_async_proxy();
        __syncwarp();
        if (lane_ != 0) return;
        if constexpr (Cluster == 2) cuda::mbarrier_arrive_expect(full, kRows * 512);
        else cuda::mbarrier_arrive(full);
    }
    __device__ float scale_at(uint32_t place, uint32_t group) const {
        return *reinterpret_cast<const float*>(data_ + (uint64_t(place) << 4) + layout::Fp8_656::scales_at +
                                               4 * group);
    }

    RowCursor<Cluster> cursor_;
    const char* const data_;
    const uint32_t base_, lane_, warp_, piece_, peer_;
    uint32_t stores_, chunk_;
    uint4 raw_[2 * kPieces];
};

}  // namespace smla::cuda_attend::sm90
