// Queries on their way into left operands: pairs of neighbours, as bf16.
#pragma once

#include "engines/cuda_common/ptx/half.cuh"
#include "engines/cuda_mma/attend/arguments.cuh"

namespace smla::cuda_attend {

struct QueryPairs {
    const void* data;
    bool bf16;  // or e4m3

    __device__ explicit QueryPairs(const Tensor& q) : data(q.data), bf16(q.dtype == SMLA_BF16) {}
    __device__ uint32_t of_bf16(int64_t at) const {
        return *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(data) + at);
    }
    __device__ uint32_t of_e4m3(int64_t at) const {
        const auto* const codes = static_cast<const uint8_t*>(data);
        uint32_t pair, unused;
        cuda::e4m3_to_f16(codes[at] | uint32_t(codes[at + 1]) << 8, pair, unused);
        return cuda::pack_bf16(cuda::f16_low(pair), cuda::f16_high(pair));
    }
};

// The larger of a lane's pair of magnitudes, and of those of the head's other three lanes.
__device__ inline float largest_of_head(uint32_t pair) {
    float own = fmaxf(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
    own = fmaxf(own, __shfl_xor_sync(~0u, own, 1));
    return fmaxf(own, __shfl_xor_sync(~0u, own, 2));
}

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

}  // namespace smla::cuda_attend
