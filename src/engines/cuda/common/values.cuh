// Tensor elements on the device, of any dtype and strides, for generic kernels and the edges of specialized
// ones. Tensors are kernel parameters by value.
#pragma once

#include "core/ints.h"
#include "core/numbers.h"

#include <smla/types.h>

#include <type_traits>

namespace smla::cuda {

using Tensor = smla_tensor;
using smla::load_int;

__device__ inline bool present(const Tensor& tensor) { return tensor.ndim != 0; }

__device__ inline int64_t element(const Tensor& t, int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) {
    return i * t.stride_elems[0] + j * t.stride_elems[1] + k * t.stride_elems[2] + l * t.stride_elems[3];
}

__device__ inline float load_value(const Tensor& t, int64_t at) {
    const auto* bytes = static_cast<const uint8_t*>(t.data);
    switch (t.dtype) {
        case SMLA_F64: return float(static_cast<const double*>(t.data)[at]);
        case SMLA_F32: return static_cast<const float*>(t.data)[at];
        case SMLA_BF16: return bf16_to_f32(static_cast<const uint16_t*>(t.data)[at]);
        case SMLA_F16: return f16_to_f32(static_cast<const uint16_t*>(t.data)[at]);
        case SMLA_E4M3: return e4m3_to_f32(bytes[at]);
        case SMLA_E8M0: return e8m0_to_f32(bytes[at]);
        case SMLA_E2M1: return e2m1_to_f32(uint8_t(bytes[at / 2] >> (4 * (at & 1)) & 15));
        default: return 0;
    }
}

// Loads the elements at `at`, at + step, ...: the first `count` exist, the others become 0. All loads are in
// flight together; a loop around load_value would wait for each load because of its switch.
template <int kN>
__device__ void load_values(const Tensor& t, int64_t at, int64_t step, int count, float (&out)[kN]) {
    const auto load = [&](const auto* data, auto to_f32) {
        std::remove_cvref_t<decltype(*data)> raw[kN];
#pragma unroll
        for (int i = 0; i < kN; ++i) raw[i] = i < count ? data[at + i * step] : 0;
#pragma unroll
        for (int i = 0; i < kN; ++i) out[i] = to_f32(raw[i]);
    };
    switch (t.dtype) {
        case SMLA_F32: load(static_cast<const float*>(t.data), [](float value) { return value; }); break;
        case SMLA_BF16: load(static_cast<const uint16_t*>(t.data), bf16_to_f32); break;
        case SMLA_F16: load(static_cast<const uint16_t*>(t.data), f16_to_f32); break;
        default:
            for (int i = 0; i < kN; ++i) out[i] = i < count ? load_value(t, at + i * step) : 0.f;
    }
}
// Loads f32, bf16 or f16 elements like load_values, but as raw bits. A kernel waits for a load where it uses
// the value, so calls of value_of() should follow the loads of all tensors.
template <int kN>
__device__ void load_bits(const Tensor& t, int64_t at, int64_t step, int count, uint32_t (&out)[kN]) {
    const auto load = [&](const auto* data) {
#pragma unroll
        for (int i = 0; i < kN; ++i) out[i] = i < count ? data[at + i * step] : 0;
    };
    if (t.dtype == SMLA_F32) load(static_cast<const uint32_t*>(t.data));
    else load(static_cast<const uint16_t*>(t.data));
}
__device__ inline float value_of(smla_dtype dtype, uint32_t bits) {
    if (dtype == SMLA_F32) return __uint_as_float(bits);
    return dtype == SMLA_BF16 ? bf16_to_f32(uint16_t(bits)) : f16_to_f32(uint16_t(bits));
}
// Loads the i32 or i64 elements (i,j), (i,j+step), ...; entries from `count` on become -1.
template <int kN>
__device__ void load_ints(const Tensor& t, int64_t i, int64_t j, int64_t step, int count,
                          int32_t (&out)[kN]) {
    const int64_t at = i * t.stride_elems[0] + j * t.stride_elems[1], apart = step * t.stride_elems[1];
    const auto load = [&](const auto* data) {
#pragma unroll
        for (int n = 0; n < kN; ++n) out[n] = n < count ? int32_t(data[at + n * apart]) : -1;
    };
    if (t.dtype == SMLA_I64) load(static_cast<const int64_t*>(t.data));
    else load(static_cast<const int32_t*>(t.data));
}
// Returns how many of first, first + step, ... are below `end`.
__device__ inline int count_below(int end, int first, int step) {
    return first < end ? (end - first + step - 1) / step : 0;
}

// Stores a value as f32, bf16 or f16, rounded once.
__device__ inline void store_value(const Tensor& t, int64_t at, float value) {
    switch (t.dtype) {
        case SMLA_F32: static_cast<float*>(t.data)[at] = value; break;
        case SMLA_BF16: static_cast<uint16_t*>(t.data)[at] = f32_to_bf16(value); break;
        case SMLA_F16: static_cast<uint16_t*>(t.data)[at] = f32_to_f16(value); break;
        default: break;
    }
}

// Sums and maxima over a warp, or over a block through `scratch` [warps]; every thread gets the result. The
// order is fixed: equal inputs give equal bits.
__device__ inline float warp_sum(float value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}
__device__ inline float warp_max(float value) {
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
    return value;
}
__device__ inline float block_gather(float warp_value, float* scratch, float neutral) {
    __syncthreads();  // scratch may still be read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = warp_value;
    __syncthreads();
    const int lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    return lane < warps ? scratch[lane] : neutral;
}
__device__ inline float block_sum(float value, float* scratch) {
    return warp_sum(block_gather(warp_sum(value), scratch, 0.f));
}

}  // namespace smla::cuda
