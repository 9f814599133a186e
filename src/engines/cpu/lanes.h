// Vectors of f32 for the templates of attend, compress, score, select and project. lanes_avx2.h,
// lanes_avx512.h, lanes_avx512_bf16.h, lanes_neon.h and lanes_scalar.h each define one traits type in an
// anonymous namespace. Each file that includes one has separate code, so the linker cannot replace it with
// the copy for another instruction set. This header contains the functions that all of them share.
#pragma once

#include <cstdint>

#if defined(__clang__)
#define SMLA_UNROLL _Pragma("unroll")
#else
#define SMLA_UNROLL _Pragma("GCC unroll 32")
#endif
#define SMLA_INLINE inline __attribute__((always_inline))
#define SMLA_LAMBDA_INLINE __attribute__((always_inline))

namespace smla::lanes {

namespace {

SMLA_INLINE float f32_at(const void* at) {
    float value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

// Returns the bits of 2^(code - 127) in f32. Code 0 gives 2^-127, a subnormal number; code 255 gives NaN.
SMLA_INLINE uint32_t e8m0_bits(uint8_t code) {
    return code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : uint32_t(code) << 23;
}
SMLA_INLINE float e8m0(uint8_t code) { return __builtin_bit_cast(float, e8m0_bits(code)); }

// Returns 2^x for x <= 0 or NaN: x = n + f, |f| <= 1/2, with a minimax polynomial of f that gives exactly 1
// for 2^0. The measured relative error is 1.9e-7. x below -160 is treated as -160, which gives 0. NaN gives
// NaN.
template <class Isa>
SMLA_INLINE typename Isa::Vec exp2_below(typename Isa::Vec x) {
    x = Isa::max(Isa::broadcast(-160.f), x);  // the order keeps a NaN
    const auto n = Isa::round(x);
    const auto f = Isa::sub(x, n);
    auto p = Isa::broadcast(0.0013264727f);
    p = Isa::fma(p, f, Isa::broadcast(0.009671513f));
    p = Isa::fma(p, f, Isa::broadcast(0.055507336f));
    p = Isa::fma(p, f, Isa::broadcast(0.24022242f));
    p = Isa::fma(p, f, Isa::broadcast(0.693147f));
    p = Isa::fma(p, f, Isa::broadcast(1.f));
    return Isa::scale_by_power(p, n);
}

// Copies words[lane * stride + step] to out[step * out_stride + lane] for the lanes of one vector.
template <class Isa>
void transpose(const uint32_t* words, int stride, int steps, uint32_t* out, int64_t out_stride) {
    int step = 0;
    if constexpr (requires { Isa::transpose_square(words, 0, out, 0); })
        for (; step + Isa::lanes <= steps; step += Isa::lanes)
            Isa::transpose_square(words + step, stride, out + step * out_stride, out_stride);
    for (; step < steps; ++step)
        for (int lane = 0; lane < Isa::lanes; ++lane)
            out[step * out_stride + lane] = words[int64_t(lane) * stride + step];
}

}  // namespace

}  // namespace smla::lanes
