// Queries of a block on their way into left operands: rows of 16-bit values in shared memory, swizzled like
// keys (fill.cuh), from where ldmatrix takes them. Loads straight into operands take four times the
// instructions, each of which a block runs once and waits for (64 heads: 5000 cycles).
#pragma once

#include "engines/cuda_common/ptx/half.cuh"
#include "engines/cuda_common/ptx/shared.cuh"
#include "engines/cuda_mma/attend/fill.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

// Against fp8 codes queries are f16, in units of a power of two of their head: the largest becomes 2^14 or
// more, so that f16 holds what is not 2^-38 of it and less. Units below 2^-63 would leave no product's unit.
class QueryUnit {
public:
    __device__ explicit QueryUnit(float largest) {
        biased_ = uint32_t(min(max(int(__float_as_uint(largest) >> 23) - 14, 64), 240));
    }
    // Of products, from what it is for queries as they came. Never 0, which would make NaN of a hole's -inf.
    __device__ float of_products(float unit) const {
        unit *= __uint_as_float(biased_ << 23);
        return unit == 0 ? 0x1p-149f : unit;
    }
    __device__ uint32_t f16(uint32_t pair) const { return cuda::pack_f16(low(pair), high(pair)); }
    __device__ uint32_t bf16(uint32_t pair) const { return cuda::pack_bf16(low(pair), high(pair)); }

private:
    __device__ float inverse() const { return __uint_as_float((254 - biased_) << 23); }
    __device__ float low(uint32_t pair) const { return __uint_as_float(pair << 16) * inverse(); }
    __device__ float high(uint32_t pair) const { return __uint_as_float(pair & 0xffff0000u) * inverse(); }

    uint32_t biased_;  // exponent of the unit
};

// Queries [heads, Width] that lie at `at`. Each of the warps that bring them brings `Rows` heads.
template <int Width, int Rows>
struct QueryRows {
    uint32_t at;

    // bf16 of the warp's heads from `first` on is under way, or there; zeros past the last head.
    __device__ void fetch(const Arguments& args, const Place& place, uint32_t first) const {
        const uint32_t row = first + lane() / kLanes, own = lane() % kLanes;
        const bool real = place.head + int(row) < args.q.shape[1];
        const int64_t from = cuda::element(args.q, place.token, real ? place.head + int(row) : 0);
        if (args.q_pieces) {
            const auto* const pieces = static_cast<const char*>(args.q.data) + 2 * from;
#pragma unroll
            for (uint32_t c = own; c < 8; c += kLanes)
#pragma unroll
                for (uint32_t block = 0; block < 2 * Width; block += 128)
                    cuda::cp_async_16(piece_at(at, kPitch, row, c) + block, pieces + 16 * c + block, real);
            return;
        }
#pragma unroll 1
        for (uint32_t c = own; c < Width / 2; c += kLanes) {
            const uint32_t pair = real ? load_pair(args.q, from + 2 * c) : 0u;
            cuda::store_shared(piece_at(at, kPitch, row, c / 4 % 8) + c / 32 * 128 + 4 * (c % 4), pair);
        }
    }
    // What has been fetched becomes f16 in its head's unit, pairs of neighbours in the order of codes.cuh, or
    // bf16 where keys are bf16. The heads' largest values go to `largest`, a float each. All of a lane's
    // share is in registers meanwhile: read again it is waited for again (one token: 2 %).
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
        const QueryUnit unit(head);
#pragma unroll
        for (uint32_t i = 0; i < kShare; ++i) {
            const uint32_t g = own + i * kLanes;
            const bool maybe_rope = (i + 1) * kLanes > kGroups - 4;
            if (maybe_rope && g >= kGroups - 4 && has_bf16_rope(format)) groups[i].scale_rope(unit);
            else groups[i].scale_codes(unit);
            if (g < kGroups) groups[i].store(*this, row, g);
        }
    }
    // Left operand of the 16 heads from `first` on and the 16 columns of `group`.
    __device__ void operand(uint32_t first, uint32_t group, uint32_t (&a)[4]) const {
        const uint32_t row = first + (lane() & 15);
        cuda::ldmatrix_x4(a, piece_at(at, kPitch, row, 2 * (group % 4) + (lane() >> 4)) + group / 4 * 128);
    }

private:
    static constexpr uint32_t kLanes = 32 / Rows, kPitch = 2 * Width, kGroups = Width / 16;
    static constexpr uint32_t kShare = (kGroups + kLanes - 1) / kLanes;  // groups of a lane

    // Made anew for each use: registers.
    static __device__ uint32_t lane() { return cuda::keep(threadIdx.x) % 32; }
    // As bf16, which holds every e4m3.
    static __device__ uint32_t load_pair(const Tensor& q, int64_t at) {
        if (q.dtype == SMLA_BF16)
            return *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(q.data) + at);
        const auto* const codes = static_cast<const uint8_t*>(q.data);
        uint32_t pair, unused;
        cuda::e4m3_to_f16(codes[at] | uint32_t(codes[at + 1]) << 8, pair, unused);
        return cuda::f16_to_bf16(pair);
    }
    // The larger of a pair of magnitudes, and of those of the other lanes of the row.
    static __device__ float largest_of_lanes(uint32_t pair) {
        float own = fmaxf(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
#pragma unroll
        for (uint32_t step = 1; step < kLanes; step *= 2) own = fmaxf(own, __shfl_xor_sync(~0u, own, step));
        return own;
    }

    struct Group {  // 16 columns
        uint32_t pairs[8] = {};

        __device__ void load(const QueryRows& rows, uint32_t row, uint32_t g) {
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) {
                const uint4 four = cuda::load_shared_4(place(rows, row, g, i));
                pairs[4 * i] = four.x, pairs[4 * i + 1] = four.y;
                pairs[4 * i + 2] = four.z, pairs[4 * i + 3] = four.w;
            }
        }
        __device__ void store(const QueryRows& rows, uint32_t row, uint32_t g) const {
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i)
                cuda::store_shared(place(rows, row, g, i), make_uint4(pairs[4 * i], pairs[4 * i + 1],
                                                                      pairs[4 * i + 2], pairs[4 * i + 3]));
        }
        __device__ uint32_t largest(uint32_t pair) const {
#pragma unroll
            for (const uint32_t each : pairs) pair = cuda::max_magnitude_bf16(pair, each);
            return pair;
        }
        __device__ void scale_rope(const QueryUnit& unit) {
            for (uint32_t& pair : pairs) pair = unit.bf16(pair);
        }
        // Lane t's words of an operand are pairs t and t + 4: columns 4t and 4t + 1, then 4t + 2 and 4t + 3.
        __device__ void scale_codes(const QueryUnit& unit) {
            uint32_t sorted[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) sorted[i / 2 + 4 * (i % 2)] = unit.f16(pairs[i]);
#pragma unroll
            for (int i = 0; i < 8; ++i) pairs[i] = sorted[i];
        }
        static __device__ uint32_t place(const QueryRows& rows, uint32_t row, uint32_t g, uint32_t i) {
            return piece_at(rows.at, kPitch, row, 2 * (g % 4) + i) + g / 4 * 128;
        }
    };
};

}  // namespace smla::cuda_attend
