// What the score kernels for Hopper multiply, and by how many warpgroups.
#pragma once

#include "engines/cuda/score/run.h"

namespace smla::cuda::sm90 {

// Which products: those of e4m3 as they are, or as f16, where each is exact; those of e2m1 with its scales as
// bf16, where each is exact, too.
enum class Products { e4m3, f16, bf16 };

inline Products products_of(const smla_score_args& args) {
    if (args.keys.format == SMLA_INDEX_MXFP4_68) return Products::bf16;
    return args.precision == SMLA_PRECISION_ROUNDED ? Products::e4m3 : Products::f16;
}

constexpr int kGroups = 4;  // warpgroups of a block that multiply

}  // namespace smla::cuda::sm90
