// Queries on their way into left operands: pairs of neighbours, as bf16.
#pragma once

#include "engines/cuda_common/ptx/math.cuh"
#include "engines/cuda_common/ptx/mma.cuh"
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

}  // namespace smla::cuda_attend
