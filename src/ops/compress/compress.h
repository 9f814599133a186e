// Checks and specification of compress.
#pragma once

#include "ops/ops.h"

namespace smla {

// Returns coff: V4's ratio 4 pools two windows (its own and the previous one), all others only their own.
constexpr int64_t overlap(const smla_compress_args& args) {
    return args.ratio == 4 && !args.no_overlap ? 2 : 1;
}

}  // namespace smla
