// 4 lanes of f32 for any processor. The compiler translates them to SSE2, NEON or plain code. Only files that
// are compiled without flags for an instruction set may include this header.
#pragma once

#include "core/e4m3_table.h"
#include "core/numbers.h"
#include "engines/cpu/lanes.h"

#include <cstring>

namespace smla::lanes {

namespace {

struct Scalar {
    typedef float Vec __attribute__((vector_size(16)));
    typedef int32_t Int __attribute__((vector_size(16)));
    static constexpr int lanes = 4, values_per_word = 1;

    static SMLA_INLINE Vec zero() { return Vec{}; }
    static SMLA_INLINE Vec load(const float* at) {
        Vec v;
        std::memcpy(&v, at, sizeof v);
        return v;
    }
    static SMLA_INLINE void store(float* at, Vec v) { std::memcpy(at, &v, sizeof v); }
    static SMLA_INLINE Vec load_words(const uint32_t* at) { return load(reinterpret_cast<const float*>(at)); }
    static SMLA_INLINE Vec broadcast(float v) { return Vec{v, v, v, v}; }
    static SMLA_INLINE Vec broadcast_word(const uint32_t* at) {
        float value;
        std::memcpy(&value, at, sizeof value);
        return broadcast(value);
    }
    static SMLA_INLINE Vec add(Vec a, Vec b) { return a + b; }
    static SMLA_INLINE Vec sub(Vec a, Vec b) { return a - b; }
    static SMLA_INLINE Vec mul(Vec a, Vec b) { return a * b; }
    static SMLA_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
    static SMLA_INLINE Vec dot(Vec sum, Vec a, Vec b) { return a * b + sum; }
    static SMLA_INLINE Vec select(Int mask, Vec yes, Vec no) {
        return Vec((mask & Int(yes)) | (~mask & Int(no)));
    }
    static SMLA_INLINE Vec max(Vec a, Vec b) { return select(a > b, a, b); }  // b if either is NaN
    // Adding 3 * 2^22 leaves no bits for a fraction. Valid for |v| < 2^22.
    static SMLA_INLINE Vec round(Vec v) { return (v + broadcast(0x1.8p23f)) - broadcast(0x1.8p23f); }
    // v * 2^n, 0 below the smallest normal number; the integer n is in the low bits of n + 3 * 2^22
    static SMLA_INLINE Vec scale_by_power(Vec v, Vec n) {
        const Int bits = Int(n + broadcast(0x1.8p23f)) - Int(broadcast(0x1.8p23f));
        const Vec power = Vec((bits + 127) << 23);
        return select(n < broadcast(-126.f), zero(), v * power);
    }
    static SMLA_INLINE bool all_one(Vec v) {
        const Int same = v == broadcast(1.f);
        return (same[0] & same[1] & same[2] & same[3]) != 0;
    }
    static SMLA_INLINE Vec load_e4m3(const uint8_t* codes) {
        return Vec{kE4m3Values[codes[0]], kE4m3Values[codes[1]], kE4m3Values[codes[2]],
                   kE4m3Values[codes[3]]};
    }
    static SMLA_INLINE Vec load_e2m1(const uint8_t* codes) {  // four codes, low nibble first
        constexpr float values[16] = {0.f,  0.5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                      -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
        return Vec{values[codes[0] & 15], values[codes[0] >> 4], values[codes[1] & 15],
                   values[codes[1] >> 4]};
    }
    static SMLA_INLINE Vec load_bf16(const void* at) {
        uint16_t halves[lanes];
        std::memcpy(halves, at, sizeof halves);
        return Vec{bf16_to_f32(halves[0]), bf16_to_f32(halves[1]), bf16_to_f32(halves[2]),
                   bf16_to_f32(halves[3])};
    }
    template <class Convert>
    static SMLA_INLINE void store_halves(char* at, Vec v, Convert convert) {
        uint16_t halves[lanes];
        for (int i = 0; i < lanes; ++i) halves[i] = convert(v[i]);
        std::memcpy(at, halves, sizeof halves);
    }
    static SMLA_INLINE void store_bf16(char* at, Vec v) { store_halves(at, v, f32_to_bf16); }
    static SMLA_INLINE void store_f16(char* at, Vec v) { store_halves(at, v, f32_to_f16); }
};

}  // namespace

}  // namespace smla::lanes
