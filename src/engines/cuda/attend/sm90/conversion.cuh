// Conversion of attend on Hopper: e4m3 codes times their scale, as f16 or bf16.
#pragma once

#include "engines/cuda/attend/sm90/config.h"

namespace smla::cuda_attend::sm90 {

// Returns 16 bytes of a record; `place` and `offset` are in units of 16 bytes. Returns zeros for kHole.
__device__ inline uint4 load_16(const char* data, uint32_t place, uint32_t offset) {
    uint4 out;
    asm volatile(
        "{.reg .pred real;\n setp.ne.u32 real, %5, %6;\n"
        "mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
        "@real ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];}"
        : "=&r"(out.x), "=&r"(out.y), "=&r"(out.z), "=&r"(out.w)
        : "l"(data + (uint64_t(place + offset) << 4)), "r"(place), "n"(kHole));
    return out;
}

// Scale of 16 codes. prepare() reads all of them; then convert() converts four at a time into two pairs.

// f16: a scale * 2^7, in both halves. The hardware converts all codes, including NaN.
struct F16Scale {
    uint32_t pair;

    __device__ void prepare(const uint4&) {}
    __device__ void convert(uint32_t codes, uint32_t& low, uint32_t& high) const {
        cuda::e4m3_to_f16(codes, low, high);
        low = cuda::times_f16(low, pair), high = cuda::times_f16(high, pair);
    }
};
// bf16: a scale * 2^80 as the sum of two bf16 numbers, each in both halves; low is 0 if the scale is a power
// of two. The bits of a code, moved to the exponent and mantissa of bf16, are its value * 2^-120, except for
// NaN codes. The product is rounded once.
template <bool PowerOfTwo>
struct Bf16Scale {
    uint32_t high, low;

    __device__ void prepare(const uint4& codes) {
        const uint32_t nan = (plus_1(codes.x) | plus_1(codes.y)) | (plus_1(codes.z) | plus_1(codes.w));
        if (nan & 0x80808080u) high = 0x7fff7fffu;
    }
    __device__ void convert(uint32_t codes, uint32_t& low_pair, uint32_t& high_pair) const {
        low_pair = scaled(__byte_perm(codes, 0, 0x1404)), high_pair = scaled(__byte_perm(codes, 0, 0x3424));
    }

private:
    // Sets bit 7 of a byte if its code is NaN; other bits are undefined.
    static __device__ uint32_t plus_1(uint32_t codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; }
    __device__ uint32_t scaled(uint32_t pair) const {
        const uint32_t placed = (pair & 0x7f007f00u) >> 4 | (pair & 0x80008000u);
        if (PowerOfTwo) return cuda::times_bf16(placed, high);
        return cuda::fma_bf16(placed, high, cuda::times_bf16(placed, low));
    }
};

// Scales of the key that a lane follows. set() returns whether the operands' type can represent them.
// of_piece() returns the scale of piece `piece` of a half of the columns, for the key of lane `from`.
template <class Format>
class Scales;

class FloatScales {  // four f32 scales, of 128 columns each
public:
    using Loaded = uint4;
    static __device__ Loaded load(const char* data, uint32_t place, uint32_t) {
        static_assert(layout::Fp8_656::scales_at == layout::Fp8_528::scales_at &&
                      layout::Fp8_656::scales_at % 16 == 0);
        return load_16(data, place, layout::Fp8_656::scales_at / 16);
    }

protected:
    static __device__ uint32_t pick(uint32_t words, uint32_t piece, uint32_t from) {
        return __byte_perm(__shfl_sync(~0u, words, from), 0, piece / 8 ? 0x3232 : 0x1010);
    }
};

template <bool Rope>
class Scales<LatentsF32<cuda::Half::f16, Rope>> : public FloatScales {
public:
    __device__ bool set(const Loaded& bits) {
        of_[0] = cuda::keep(pack(bits.x, bits.y)), of_[1] = cuda::keep(pack(bits.z, bits.w));
        return holds(bits.x) & holds(bits.y) & holds(bits.z) & holds(bits.w);
    }
    __device__ F16Scale of_piece(uint32_t half, uint32_t piece, uint32_t from) const {
        return {pick(half ? of_[1] : of_[0], piece, from)};
    }

private:
    static __device__ uint32_t pack(uint32_t a, uint32_t b) {
        constexpr float kFactor = Latents<cuda::Half::f16>::key_factor;
        return cuda::pack_f16(__uint_as_float(a) * kFactor, __uint_as_float(b) * kFactor);
    }
    static __device__ bool holds(uint32_t bits) {  // returns true for 0 and for 2^-23 to 1
        return (bits - 0x34000000u <= 0x3f800000u - 0x34000000u) | (bits == 0);
    }
    uint32_t of_[2];  // scales of columns 0 to 255 and 256 to 511
};

template <bool Rope>
class Scales<LatentsF32<cuda::Half::bf16, Rope>> : public FloatScales {
public:
    __device__ bool set(const Loaded& bits) {
        split(0, __uint_as_float(bits.x) * 0x1p80f, __uint_as_float(bits.y) * 0x1p80f);
        split(1, __uint_as_float(bits.z) * 0x1p80f, __uint_as_float(bits.w) * 0x1p80f);
        return true;
    }
    __device__ Bf16Scale<false> of_piece(uint32_t half, uint32_t piece, uint32_t from) const {
        return {pick(half ? high_[1] : high_[0], piece, from), pick(half ? low_[1] : low_[0], piece, from)};
    }

private:
    __device__ void split(int half, float a, float b) {  // packs two scales into each word
        high_[half] = cuda::keep(cuda::pack_bf16(a, b));
        low_[half] = cuda::keep(cuda::pack_bf16(a - __uint_as_float(high_[half] << 16),
                                                b - __uint_as_float(high_[half] & 0xffff0000u)));
    }
    uint32_t high_[2], low_[2];  // scales of columns 0 to 255 and 256 to 511
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
    __device__ bool set(const Loaded& codes) {
        of_[0] = cuda::keep(codes.x), of_[1] = cuda::keep(codes.y);
        return true;
    }
    __device__ Bf16Scale<true> of_piece(uint32_t half, uint32_t piece, uint32_t from) const {
        const uint32_t word = __shfl_sync(~0u, half ? of_[1] : of_[0], from),
                       code = word >> (piece / 4 * 8) & 255;
        const uint32_t bits = min(code + 80, 255u) << 7 | (code == 255 ? 0x40u : 0u);  // 255 is NaN
        return {bits * 0x10001u, 0};
    }

private:
    uint32_t of_[2];
};

}  // namespace smla::cuda_attend::sm90
