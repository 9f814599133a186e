// The splits of a token's rows: how the mma kernel leaves them, and what joins them.
#pragma once

#include "engines/cuda_common/ptx/mma.cuh"
#include "engines/cuda_mma/attend/arguments.cuh"
#include "engines/cuda_mma/attend/schedule.h"

namespace smla::cuda_attend {

struct Cut {
    int head_tiles, splits;
    Parts parts;
};

// Two neighbours of a row of the output.
__device__ inline void store_pair(const Tensor& out, int64_t at, float low, float high) {
    if (out.dtype == SMLA_F32) {
        *reinterpret_cast<float2*>(static_cast<float*>(out.data) + at) = make_float2(low, high);
    } else if (out.dtype == SMLA_BF16) {
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out.data) + at) = cuda::pack_bf16(low, high);
    } else {
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out.data) + at) =
            f32_to_f16(low) | uint32_t(f32_to_f16(high)) << 16;
    }
}

// Instances: widths of 576 and 512, fp8 records or bf16 rows. few.cu: 16 heads; many.cu: 32 or 64.
template <int Width, bool Coded>
void launch_few(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env);
template <int Width, bool Coded>
void launch_many(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env);

void join_splits(const smla_attend_args& args, const Cut& cut, const Env& env);

}  // namespace smla::cuda_attend
