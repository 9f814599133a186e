// Shared by the fp8 formats: tile maxima, the writer's scale rule, and e4m3 conversion.
#pragma once

#include "core/e4m3_table.h"
#include "core/numbers.h"
#include "formats/scale_rules.h"

#include <smla/types.h>

#include <cmath>
#include <cstring>

namespace smla::fp8 {

// Returns the largest magnitude except NaN: a NaN keeps its code and does not affect the tile's scale.
// Compares bits, because compilers vectorize integer maxima but not float maxima.
template <class Real>
float amax(const Real* values, int n) {
    int32_t largest = 0;
    for (int i = 0; i < n; ++i) {
        const int32_t magnitude = std::bit_cast<int32_t>(float(values[i])) & 0x7fffffff;
        const int32_t number = magnitude > 0x7f800000 ? 0 : magnitude;
        largest = number > largest ? number : largest;
    }
    return std::bit_cast<float>(largest);
}

// Returns values as a format's writer quantizes them: f32, rounded to bf16 if the cache's writer bits
// require it.
template <class Real>
void to_write(const Real* values, int n, smla_writer writer, float* out) {
    for (int i = 0; i < n; ++i) out[i] = float(values[i]);
    if (writer & SMLA_WRITER_BF16_FIRST)
        for (int i = 0; i < n; ++i) out[i] = round_to_bf16(out[i]);
}

template <class Real>
void encode(const Real* __restrict values, int n, float scale, uint8_t* __restrict codes) {
    for (int i = 0; i < n; ++i) codes[i] = f32_to_e4m3(float(values[i]) / scale);
}

template <class Real>
void decode(const uint8_t* __restrict codes, int n, float scale, Real* __restrict values) {
    for (int i = 0; i < n; ++i) values[i] = Real(kE4m3Values[codes[i]]) * Real(scale);
}

// bf16 parts (rope) are stored unchanged, at any alignment.
template <class Real>
void encode_bf16(const Real* values, int n, char* out) {
    for (int i = 0; i < n; ++i) {
        const uint16_t bits = f32_to_bf16(float(values[i]));
        std::memcpy(out + 2 * i, &bits, 2);
    }
}

template <class Real>
void decode_bf16(const char* in, int n, Real* values) {
    for (int i = 0; i < n; ++i) {
        uint16_t bits;
        std::memcpy(&bits, in + 2 * i, 2);
        values[i] = Real(bf16_to_f32(bits));
    }
}

inline float load_f32(const char* at) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
}
inline void store_f32(char* at, float value) { std::memcpy(at, &value, sizeof value); }

inline uint8_t* bytes(char* at) { return reinterpret_cast<uint8_t*>(at); }

}  // namespace smla::fp8
