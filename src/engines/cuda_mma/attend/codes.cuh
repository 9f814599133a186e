// fp8 records as operands of mma.sync, straight from their bytes in shared memory. Codes become f16,
// exactly; their scales multiply the products (of keys) and the weights (of values), so that nothing of a
// key is rounded.
//
// Keys:   a word that ldmatrix hands lane 4 g + t is four neighbouring columns. A step of 16 takes them for
//         its columns 2t, 2t + 1, 2t + 8, 2t + 9; queries are loaded in the same order.
// Values: a word that ldmatrix hands it transposed is columns 2g and 2g + 1 of keys 2t and 2t + 1. Even
//         columns of 16 make one operand, odd columns another: a lane's sums of both are neighbours.
// Range:  queries are f16 in units of a power of two of their head (QueryUnit), weights are 2^7 times what
//         they are, and scales of values are relative to one of the first keys' (ValueScales).
// Rope of fp8_656 and fp8_584 is bf16, and so are the operands of its products.
#pragma once

#include "engines/cuda_common/ptx/half.cuh"
#include "engines/cuda_common/ptx/shared.cuh"
#include "engines/cuda_mma/attend/keys.cuh"
#include "engines/cuda_mma/attend/splits.cuh"
#include "engines/cuda_mma/attend/tile.cuh"

namespace smla::cuda_attend {

// `Lanes` neighbours copy a record, a piece of 16 bytes each at a time. A hole's address is not used: zeros.
template <int Width, int Lanes>
__device__ inline void copy_record(uint32_t to, const char* from, uint32_t pieces, bool valid,
                                   uint32_t piece) {
    to += 16 * piece, from += 16 * piece;  // once: what is added below is part of the instructions
#pragma unroll
    for (uint32_t c = 0; c < record_pitch(Width) / 16; c += Lanes)
        if (c + Lanes <= 32 || piece + c < pieces) cuda::cp_async_16(to + 16 * c, from + 16 * c, valid);
}
static_assert(kScalesBehindAt + 16 <= record_pitch(576) && kScalesBehindAt + 8 <= record_pitch(512));
// Scales that a record does not have by itself, to behind it; by one thread.
__device__ inline void copy_scales(uint32_t to, const Reader& reader, const Reader::Row& row) {
    if (reader.format == SMLA_FP8_584) cuda::cp_async_8(to + kScalesBehindAt, reader.scales(row), row.valid);
    else if (reader.format == SMLA_FP8_576 || reader.format == SMLA_FP8_512) {
        const uint32_t scale = __float_as_uint(reader.scale);
        cuda::store_shared(to + reader.scales_at, make_uint4(scale, scale, scale, scale));
    }
}

// What products need to know of a tile's source; loaded before its keys are waited for.
template <int Width>
struct RecordKind {
    uint32_t scales_at;

    RecordKind() = default;
    __device__ explicit RecordKind(const Reader& reader) : scales_at(reader.scales_at) {}
    __device__ bool e8m0() const { return Width == 512 && scales_at == kScalesBehindAt; }
    __device__ bool bf16_rope() const { return Width == 576 ? scales_at == kScalesAt : e8m0(); }
};

// Code i of four as a float; 255 is NaN, 0, which stands for 2^-127, counts as 0.
__device__ inline float e8m0_scale(uint32_t codes, int i) {
    const uint32_t bits = i < 3 ? codes << (23 - 8 * i) : codes >> 1;
    const float scale = __uint_as_float(bits & 0x7f800000u);
    return fmaf(scale, 0.f, scale);  // infinity becomes NaN
}

// Scales of a lane's keys: 2t and 2t + 1 of every 8, of which the first lies at `first`; for the 64 columns
// from 64 * group on. A hole's are 0, but for a scale of the whole cache.
template <int Width, int N>
__device__ inline void load_scales(const RecordKind<Width>& kind, uint32_t first, uint32_t group,
                                   float (&out)[N]) {
    constexpr uint32_t kPitch = uint32_t(record_pitch(Width));
    const uint32_t at = first + kind.scales_at + (kind.e8m0() ? group & 4 : group / 2 * 4);
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = cuda::load_shared_f32(at + uint32_t(8 * (i / 2) + i % 2) * kPitch);
    if (!kind.e8m0()) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const uint32_t code = __float_as_uint(out[i]) >> (8 * (group & 3));
        out[i] = e8m0_scale(code, 0);
    }
}

// The same for a half of 256 columns and the keys of a tile of 16, loaded once.
template <int Width>
class HalfScales {
public:
    __device__ void load(const RecordKind<Width>& kind, uint32_t first, uint32_t half) {
        constexpr uint32_t kPitch = uint32_t(record_pitch(Width));
        const uint32_t at = first + kind.scales_at + (kind.e8m0() ? 0 : 8 * half);
        e8m0_ = kind.e8m0() ? ~0u : 0u;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            stored_[i] = cuda::load_shared_2(at + uint32_t(8 * (i / 2) + i % 2) * kPitch);
            if (kind.e8m0() && half) stored_[i].x = stored_[i].y;
        }
    }
    // Of key i, for the columns of `group`, of 128 or, with keys of 512, of 64.
    __device__ float of(int group, int i) const {
        const uint32_t floats = (Width == 576 ? group : group / 2) ? stored_[i].y : stored_[i].x;
        if (Width == 576) return __uint_as_float(floats);
        const uint32_t codes = __float_as_uint(e8m0_scale(stored_[i].x, group));
        return __uint_as_float((codes & e8m0_) | (floats & ~e8m0_));  // a branch or a choice takes more
    }

private:
    uint2 stored_[4];  // two floats, or four codes
    uint32_t e8m0_;    // all bits or none
};

// Products of 16 keys with 32 columns, which ldmatrix has brought from key_row. Calls multiply(step,
// keys / 8, b0, b1).
template <class Multiply>
__device__ inline void multiply_codes(const uint32_t (&raw)[4], const Multiply& multiply) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t b0, b1;
        cuda::e4m3_to_f16(raw[2 * (i % 2) + i / 2], b0, b1);
        multiply(i / 2, i % 2, b0, b1);
    }
}
// This lane's row of the four matrices: keys 0 to 7 of 16 bytes, of the next 16, then keys 8 to 15.
template <class T>
__device__ inline uint32_t key_row(uint32_t records, uint32_t lane) {
    return records + ((lane & 7) + (lane >> 4) * 8) * T::pitch + (lane >> 3 & 1) * 16;
}

// Values of 16 keys and 32 columns, which ldmatrix has brought transposed from value_row. Calls
// multiply(columns / 16, odd, b0, b1).
template <class Multiply>
__device__ inline void multiply_code_values(const uint32_t (&raw)[4], const Multiply& multiply) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        uint32_t b0[2], b1[2];  // of even columns, of odd ones
        cuda::e4m3_to_f16(__byte_perm(raw[2 * n], 0, 0x3120), b0[0], b0[1]);
        cuda::e4m3_to_f16(__byte_perm(raw[2 * n + 1], 0, 0x3120), b1[0], b1[1]);
        multiply(n, 0, b0[0], b1[0]);
        multiply(n, 1, b0[1], b1[1]);
    }
}
// This lane's row of the four matrices: keys 0 to 15 of 16 bytes, then of the next 16.
template <class T>
__device__ inline uint32_t value_row(uint32_t records, uint32_t lane) {
    return records + (lane & 15) * T::pitch + (lane >> 4) * 16;
}

// Scales of a warp's columns, relative to 2^8 times the largest of its first keys. A weight of at most 2^15
// times one within the window fits f16; keys out of it are to be added one by one, in f32. What it is lies at
// `at`, 0 until it is known: registers are the sums'.
struct ValueScales {
    uint32_t at;

    // Scales become relative; true, for all lanes, if some are out of the window.
    template <int N>
    __device__ bool relate(float (&scales)[N]) const {
        float relative = cuda::load_shared_f32(at);
        if (relative == 0) relative = start(scales);
        // is_far of any, a few instructions shorter; bits of floats are ordered as they are, 0 comes
        // last here
        uint32_t most = 0, least = ~0u;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            scales[i] *= relative;
            const uint32_t bits = __float_as_uint(scales[i]);
            most = max(most, bits);
            least = min(least, bits - 1);
        }
        return __any_sync(~0u, most > kMost || least < kLeast - 1);
    }
    static __device__ bool is_far(float scale) {
        const uint32_t bits = __float_as_uint(scale);  // one below 0 is far
        return bits > kMost || bits - 1 < kLeast - 1;
    }
    // What sums are to be multiplied with in the end.
    __device__ float unit() const {
        const float relative = cuda::load_shared_f32(at);
        return relative == 0 ? 1.f : 1 / relative;
    }
    __device__ void clear() const { cuda::store_shared(at, 0.f); }

private:
    static constexpr uint32_t kMost = 0x3f800000, kLeast = 0x38800000;  // 1, 2^-14

    template <int N>
    __device__ float start(const float (&scales)[N]) const {
        float largest = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) largest = fmaxf(largest, fabsf(scales[i]));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        if (largest == 0) return 0;  // no key has a scale yet, and no sum is other than 0
        // Bounded, so that a later key's scale of up to 2^80 overflows no sum. The quotient, not a power of
        // two near it: then the one scale of a cache is not rounded.
        const float relative = __fdividef(0x1p-8f, fminf(fmaxf(largest, 0x1p-24f), 0x1p24f));
        __syncwarp();
        cuda::store_shared(at, relative);
        __syncwarp();
        return relative;
    }
};

// 16 columns of 16 heads from `column` on: even and odd ones of codes, in units of their scales, or, of
// bf16, the first 8 and the last.
template <int Columns>
__device__ inline void put_codes_or_rope(const WayOut<Columns>& out, uint32_t lane, uint32_t column,
                                         bool rope, const float (&sums)[2][4], float unit) {
    const float by = rope ? 1.f : unit;
    const uint32_t first = column + (rope ? 2 : 4) * (lane % 4), second = first + (rope ? 8 : 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float a = sums[0][2 * r] * by, b = sums[0][2 * r + 1] * by, c = sums[1][2 * r] * by,
                    d = sums[1][2 * r + 1] * by;
        out.put(lane / 4 + 8 * uint32_t(r), first, a, rope ? b : c);
        out.put(lane / 4 + 8 * uint32_t(r), second, rope ? c : b, d);
    }
}

// One key's values times the weights of this lane's two heads, for `count` times 16 columns: `codes` is
// where its four of the first 16 lie.
template <int N>
__device__ inline void add_far_key(float (&sums)[N][2][4], const float (&weights)[2], int first, int count,
                                   uint32_t codes) {
#pragma unroll
    for (int n = first; n < first + count; ++n) {
        uint32_t pairs[2];
        cuda::e4m3_to_f16(cuda::load_shared(codes + uint32_t(16 * (n - first))), pairs[0], pairs[1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t pair = pairs[i / 2];
            const float value = i % 2 ? cuda::f16_high(pair) : cuda::f16_low(pair);
            sums[n][i % 2][i / 2] += weights[0] * value;
            sums[n][i % 2][2 + i / 2] += weights[1] * value;
        }
    }
}

}  // namespace smla::cuda_attend
