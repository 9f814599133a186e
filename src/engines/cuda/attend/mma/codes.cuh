// Loads fp8 records as operands of mma.sync directly from their bytes in shared memory. Codes become f16
// exactly. Scales multiply the products q·k and the weights instead of the codes, so no key is rounded.
//
// Keys    ldmatrix delivers a word of four neighboring columns to lane 4 g + t, as columns 2t, 2t + 1,
//         2t + 8, 2t + 9 of a k-step of 16; queries are stored in the same order (queries.cuh).
// Values  transposed ldmatrix delivers columns 2g and 2g + 1 of keys 2t and 2t + 1 to lane 4 g + t. Even
//         columns form one operand and odd ones another, so a lane's two accumulators are neighbors.
// Range   f16 can overflow. Queries are therefore scaled per head (QueryScale), weights are multiplied by 2^7
//         (lift), and scales of values are relative to a reference (ValueScales).
// Rope    rope is bf16 in fp8_656 and fp8_584, and so are the operands of its products.
#pragma once

#include "engines/cuda/attend/epilogue.cuh"
#include "engines/cuda/attend/mma/key_tiles.cuh"
#include "engines/cuda/common/ptx/half.cuh"
#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda_attend {

// Returns E8M0 code i of four as f32. 255 is NaN; 0 (2^-127) becomes 0.
__device__ inline float e8m0_scale(uint32_t codes, int i) {
    const uint32_t bits = i < 3 ? codes << (23 - 8 * i) : codes >> 1;
    const float scale = __uint_as_float(bits & 0x7f800000u);
    return fmaf(scale, 0.f, scale);  // infinity becomes NaN
}

// Loads the scales of this lane's keys (2t and 2t + 1 of every 8) for 64 columns from 64 * group on. `first`:
// shared address of key 2t. Scales of masked entries (-1) are 0 unless the whole cache has one scale.
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

// Scales of 256 columns for a lane's four keys in a tile of 16, loaded once.
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
    // Returns the scale of key i for a group of columns: 128 of them, or 64 if keys have 512 values.
    __device__ float of(int group, int i) const {
        const uint32_t floats = (Width == 576 ? group : group / 2) ? stored_[i].y : stored_[i].x;
        if (Width == 576) return __uint_as_float(floats);
        const uint32_t codes = __float_as_uint(e8m0_scale(stored_[i].x, group));
        return __uint_as_float((codes & e8m0_) |
                               (floats & ~e8m0_));  // takes fewer instructions than a branch or a select
    }

private:
    uint2 stored_[4];  // two floats or four codes each
    uint32_t e8m0_;    // mask: all bits set, or none
};

// Converts the codes that ldmatrix loaded at key_row to right operands of 16 keys x 32 columns. Calls
// multiply(k-step, key / 8, b0, b1).
template <class Multiply>
__device__ inline void multiply_codes(const uint32_t (&raw)[4], const Multiply& multiply) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t b0, b1;
        cuda::e4m3_to_f16(raw[2 * (i % 2) + i / 2], b0, b1);
        multiply(i / 2, i % 2, b0, b1);
    }
}
// Returns this lane's row for ldmatrix: keys 0 to 7, columns 0 to 15 and 16 to 31; then keys 8 to 15.
template <class T>
__device__ inline uint32_t key_row(uint32_t records, uint32_t lane) {
    return records + ((lane & 7) + (lane >> 4) * 8) * T::pitch + (lane >> 3 & 1) * 16;
}

// Converts the codes that transposed ldmatrix loaded at value_row to right operands of 16 keys x 32 columns
// of values. Calls multiply(column / 16, odd, b0, b1).
template <class Multiply>
__device__ inline void multiply_code_values(const uint32_t (&raw)[4], const Multiply& multiply) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        uint32_t b0[2], b1[2];  // operands of even columns, of odd columns
        cuda::e4m3_to_f16(__byte_perm(raw[2 * n], 0, 0x3120), b0[0], b0[1]);
        cuda::e4m3_to_f16(__byte_perm(raw[2 * n + 1], 0, 0x3120), b1[0], b1[1]);
        multiply(n, 0, b0[0], b1[0]);
        multiply(n, 1, b0[1], b1[1]);
    }
}
// Returns this lane's row for ldmatrix: keys 0 to 15, columns 0 to 15, then 16 to 31.
template <class T>
__device__ inline uint32_t value_row(uint32_t records, uint32_t lane) {
    return records + (lane & 15) * T::pitch + (lane >> 4) * 16;
}

// Scales of a warp's columns of values, relative to a reference: 2^8 times the largest scale of the first
// tile that has any. A weight of at most 2^15 times a relative scale within the window [2^-14, 1] fits f16.
// Keys outside of the window are accumulated one by one in f32, which is rare and slow but correct. The
// reference is in shared memory (0: not chosen yet), because no register is free.
struct ValueScales {
    uint32_t at;

    // Makes scales relative. Returns true to all lanes if any scale is out of the window.
    template <int N>
    __device__ bool normalize(float (&scales)[N]) const {
        float relative = cuda::load_shared_f32(at);
        if (relative == 0) relative = start(scales);
        // Computes out_of_window of any scale in fewer instructions: bits of floats >= 0 are ordered like the
        // floats, and bits - 1 orders 0 last.
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
    static __device__ bool out_of_window(float scale) {
        const uint32_t bits = __float_as_uint(scale);  // 0 is within the window, a negative number is outside
        return bits > kMost || bits - 1 < kLeast - 1;
    }
    // Returns the factor that undoes normalize() on the accumulators.
    __device__ float inverse() const {
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
        if (largest == 0) return 0;  // all scales so far are 0, and so are the accumulators
        // Clamped so that a later key's scale of up to 2^80 overflows no accumulator. The reference is not
        // rounded to a power of two, so a scale of the whole cache becomes exactly 2^-8.
        const float relative = __fdividef(0x1p-8f, fminf(fmaxf(largest, 0x1p-24f), 0x1p24f));
        __syncwarp();
        cuda::store_shared(at, relative);
        __syncwarp();
        return relative;
    }
};

// Writes 16 columns of 16 heads to the epilogue buffer. For codes, sums[0] are the even columns and sums[1]
// the odd ones, to be multiplied by `unit`; for bf16 rope, sums[0] are the first 8 and sums[1] the last.
template <int Columns>
__device__ inline void write_codes_or_rope(const EpilogueBuffer<Columns>& out, uint32_t lane, uint32_t column,
                                           bool rope, const float (&sums)[2][4], float unit) {
    const float by = rope ? 1.f : unit;
    const uint32_t first = column + (rope ? 2 : 4) * (lane % 4), second = first + (rope ? 8 : 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float a = sums[0][2 * r] * by, b = sums[0][2 * r + 1] * by, c = sums[1][2 * r] * by,
                    d = sums[1][2 * r + 1] * by;
        out.write(lane / 4 + 8 * uint32_t(r), first, a, rope ? b : c);
        out.write(lane / 4 + 8 * uint32_t(r), second, rope ? c : b, d);
    }
}

// Accumulates one key in f32: its values times the weights of this lane's two heads, for 16 * `count`
// columns. `codes`: shared address of the lane's four codes of the first 16.
template <int N>
__device__ inline void add_key_f32(float (&sums)[N][2][4], const float (&weights)[2], int first, int count,
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
