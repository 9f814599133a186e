// Shared code of both mma.sync kernels: f32 as three bf16, and stores of neighboring outputs.
#pragma once

#include "core/tensor.h"
#include "engines/cuda/common/ptx/mma.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/project/split.h"

#include <cstdint>

namespace smla::cuda {

constexpr int kPiece = 8;  // neighboring k: 16 bytes of bf16
constexpr int kParts = 3;  // bf16 parts of an f32 (project/split.h)

// Moves the leading 8 bits of each value to words; words[i] has values 2 i and 2 i + 1.
__device__ inline void take_part(float (&values)[kPiece], uint32_t (&words)[kPiece / 2]) {
#pragma unroll
    for (int i = 0; i < kPiece / 2; ++i) {
        float &low = values[2 * i], &high = values[2 * i + 1];
        words[i] = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
        low -= __uint_as_float(__float_as_uint(low) & 0xffff0000u);
        high -= __uint_as_float(__float_as_uint(high) & 0xffff0000u);
    }
}
__device__ inline void take_parts(float (&values)[kPiece], uint32_t (&parts)[kParts][kPiece / 2]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) take_part(values, parts[part]);
}

// Splits values into parts. Infinities and NaN go only into the first part.
__device__ inline void split(float (&values)[kPiece], uint32_t (&parts)[kParts][kPiece / 2]) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) zero = fmaf(values[i], 0.f, zero);
    if (zero == 0) return take_parts(values, parts);
    uint32_t special[kPiece / 2] = {};
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
        if (fabsf(values[i]) < INFINITY) continue;
        special[i / 2] |= uint32_t(f32_to_bf16(values[i])) << 16 * (i % 2);
        values[i] = 0;
    }
    take_parts(values, parts);
#pragma unroll
    for (int i = 0; i < kPiece / 2; ++i) parts[0][i] |= special[i];
}

// Stores kRun neighboring outputs, aligned to their total size.
template <int kRun>
__device__ void store_run(const Tensor& out, int64_t at, const float (&values)[kRun]) {
    if (out.dtype == SMLA_F32) {
        auto* to = reinterpret_cast<float2*>(static_cast<float*>(out.data) + at);
        if constexpr (kRun % 4 == 0) {
#pragma unroll
            for (int i = 0; i < kRun; i += 4)
                *reinterpret_cast<float4*>(to + i / 2) =
                    make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
        } else {
            *to = make_float2(values[0], values[1]);
        }
        return;
    }
    uint32_t words[kRun / 2];
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i)
        words[i] = out.dtype == SMLA_BF16 ? pack_bf16(values[2 * i], values[2 * i + 1])
                                          : pack_f16(values[2 * i], values[2 * i + 1]);
    auto* to = static_cast<uint16_t*>(out.data) + at;
    if constexpr (kRun == 8)
        *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    else if constexpr (kRun == 4) *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    else *reinterpret_cast<uint32_t*>(to) = words[0];
}

}  // namespace smla::cuda
