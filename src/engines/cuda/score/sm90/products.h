// Types that the score kernels for Hopper multiply, and the number of multiplying warpgroups.
#pragma once

#include "engines/cuda/score/run.h"

namespace smla::cuda::sm90 {

// Types of products: e4m3 unchanged, or exactly as f16; e2m1 with its scales, exactly as bf16.
enum class Products { e4m3, f16, bf16 };

inline Products products_of(const smla_score_args& args) {
    if (args.keys.format == SMLA_INDEX_MXFP4_68) return Products::bf16;
    return args.precision == SMLA_PRECISION_ROUNDED ? Products::e4m3 : Products::f16;
}

constexpr int kGroups = 4;  // warpgroups of a block that multiply

}  // namespace smla::cuda::sm90
