// Loads the queries of a block as left operands: as rows of 16-bit values in shared memory, swizzled like
// keys (key_tiles.cuh), and from there by ldmatrix. Loading operands directly from global memory takes four
// times as many instructions, which run once and delay the block (64 heads: 5000 cycles).
#pragma once

#include "engines/cuda/attend/mma/key_tiles.cuh"
#include "engines/cuda/common/ptx/half.cuh"
#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda_attend {

// Scale of one head's queries. With fp8 codes, queries are f16, scaled per head by a power of two so that the
// largest value is at least 2^14; values below 2^-38 of the largest become 0. The exponent is clamped so that
// the product scale cannot underflow.
class QueryScale {
public:
    __device__ explicit QueryScale(float largest) {
        biased_ = uint32_t(min(max(int(__float_as_uint(largest) >> 23) - 14, 64), 240));
    }
    // Returns the scale of q·k, given the scale for unscaled q. Never 0, because a masked -inf times 0 is
    // NaN.
    __device__ float of_products(float scale) const {
        scale *= __uint_as_float(biased_ << 23);
        return scale == 0 ? 0x1p-149f : scale;
    }
    __device__ uint32_t f16(uint32_t pair) const { return cuda::pack_f16(low(pair), high(pair)); }
    __device__ uint32_t bf16(uint32_t pair) const { return cuda::pack_bf16(low(pair), high(pair)); }

private:
    __device__ float inverse() const { return __uint_as_float((254 - biased_) << 23); }
    __device__ float low(uint32_t pair) const { return __uint_as_float(pair << 16) * inverse(); }
    __device__ float high(uint32_t pair) const { return __uint_as_float(pair & 0xffff0000u) * inverse(); }

    uint32_t biased_;  // exponent of 1 / scale
};

// Queries [heads, Width] in shared memory at `at`. Each of the loading warps loads `Rows` heads.
template <int Width, int Rows>
struct QueryTile {
    uint32_t at;

    // Starts the copies of the warp's heads from `first` on as bf16. Rows after the last head are zeros.
    __device__ void fetch(const Arguments& args, const WorkTile& work, uint32_t first) const {
        const uint32_t row = first + lane() / kLanes, own = lane() % kLanes;
        const bool real = work.head + int(row) < args.q.shape[1];
        const int64_t from = cuda::element(args.q, work.token, real ? work.head + int(row) : 0);
        if (args.q_chunks) {
            const auto* const chunks = static_cast<const char*>(args.q.data) + 2 * from;
#pragma unroll
            for (uint32_t c = own; c < 8; c += kLanes)
#pragma unroll
                for (uint32_t block = 0; block < 2 * Width; block += 128)
                    cuda::cp_async_16(swizzled_at(at, kPitch, row, c) + block, chunks + 16 * c + block, real);
            return;
        }
#pragma unroll 1
        for (uint32_t c = own; c < Width / 2; c += kLanes) {
            const uint32_t pair = real ? load_pair(args.q, from + 2 * c) : 0u;
            cuda::store_shared(swizzled_at(at, kPitch, row, c / 4 % 8) + c / 32 * 128 + 4 * (c % 4), pair);
        }
    }
    // Converts bf16 in place to scaled f16 in the column order of codes.cuh, or to scaled bf16 if keys are
    // bf16 (rope). Writes max |q| of each head to `largest`, a float each. A lane keeps its share in
    // registers between the two passes, because reading it twice costs 2 % for one token.
    __device__ void scale(smla_format format, uint32_t first, uint32_t largest) const {
        const uint32_t row = first + lane() / kLanes, own = lane() % kLanes;
        Group groups[kShare];
        uint32_t pair = 0;
#pragma unroll
        for (uint32_t i = 0; i < kShare; ++i) {
            if (own + i * kLanes < kGroups) groups[i].load(*this, row, own + i * kLanes);
            pair = groups[i].largest(pair);
        }
        const float head = largest_of_lanes(pair);
        if (own == 0) cuda::store_shared(largest + 4 * row, head);
        const QueryScale scale(head);
#pragma unroll
        for (uint32_t i = 0; i < kShare; ++i) {
            const uint32_t g = own + i * kLanes;
            const bool maybe_rope = (i + 1) * kLanes > kGroups - 4;
            if (maybe_rope && g >= kGroups - 4 && has_bf16_rope(format)) groups[i].scale_rope(scale);
            else groups[i].scale_codes(scale);
            if (g < kGroups) groups[i].store(*this, row, g);
        }
    }
    // Loads a left operand: 16 heads, which begin at `first`, and the 16 columns of `group`.
    __device__ void operand(uint32_t first, uint32_t group, uint32_t (&a)[4]) const {
        const uint32_t row = first + (lane() & 15);
        cuda::ldmatrix_x4(a, swizzled_at(at, kPitch, row, 2 * (group % 4) + (lane() >> 4)) + group / 4 * 128);
    }

private:
    static constexpr uint32_t kLanes = 32 / Rows, kPitch = 2 * Width, kGroups = Width / 16;
    static constexpr uint32_t kShare = (kGroups + kLanes - 1) / kLanes;  // groups per lane

    // Returns the lane, recomputed at each use to save registers.
    static __device__ uint32_t lane() { return cuda::keep(threadIdx.x) % 32; }
    // Returns two values as bf16, which represents every e4m3 number exactly.
    static __device__ uint32_t load_pair(const Tensor& q, int64_t at) {
        if (q.dtype == SMLA_BF16)
            return *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(q.data) + at);
        const auto* const codes = static_cast<const uint8_t*>(q.data);
        uint32_t pair, unused;
        cuda::e4m3_to_f16(codes[at] | uint32_t(codes[at + 1]) << 8, pair, unused);
        return cuda::f16_to_bf16(pair);
    }
    // Returns the maximum of a pair of magnitudes over all lanes of the row.
    static __device__ float largest_of_lanes(uint32_t pair) {
        float own = fmaxf(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
#pragma unroll
        for (uint32_t step = 1; step < kLanes; step *= 2) own = fmaxf(own, __shfl_xor_sync(~0u, own, step));
        return own;
    }

    struct Group {  // 16 columns
        uint32_t pairs[8] = {};

        __device__ void load(const QueryTile& rows, uint32_t row, uint32_t g) {
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) {
                const uint4 four = cuda::load_shared_4(chunk(rows, row, g, i));
                pairs[4 * i] = four.x, pairs[4 * i + 1] = four.y;
                pairs[4 * i + 2] = four.z, pairs[4 * i + 3] = four.w;
            }
        }
        __device__ void store(const QueryTile& rows, uint32_t row, uint32_t g) const {
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i)
                cuda::store_shared(chunk(rows, row, g, i), make_uint4(pairs[4 * i], pairs[4 * i + 1],
                                                                      pairs[4 * i + 2], pairs[4 * i + 3]));
        }
        __device__ uint32_t largest(uint32_t pair) const {
#pragma unroll
            for (const uint32_t each : pairs) pair = cuda::max_magnitude_bf16(pair, each);
            return pair;
        }
        __device__ void scale_rope(const QueryScale& scale) {
            for (uint32_t& pair : pairs) pair = scale.bf16(pair);
        }
        // ldmatrix delivers pairs t and t + 4 to lane t; they must be columns 4t to 4t + 3 (codes.cuh).
        __device__ void scale_codes(const QueryScale& scale) {
            uint32_t sorted[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) sorted[i / 2 + 4 * (i % 2)] = scale.f16(pairs[i]);
#pragma unroll
            for (int i = 0; i < 8; ++i) pairs[i] = sorted[i];
        }
        static __device__ uint32_t chunk(const QueryTile& rows, uint32_t row, uint32_t g, uint32_t i) {
            return swizzled_at(rows.at, kPitch, row, 2 * (g % 4) + i) + g / 4 * 128;
        }
    };
};

}  // namespace smla::cuda_attend
