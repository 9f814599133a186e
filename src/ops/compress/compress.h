// compress: what it means (reference.cpp) and what it accepts. See include/smla/stages_cache.h.
#pragma once

#include "ops/ops.h"

namespace smla {

// coff: V4's ratio 4 pools two windows (its own and the one before), all others their own only.
constexpr int64_t overlap(const smla_compress_args& args) {
    return args.ratio == 4 && !args.no_overlap ? 2 : 1;
}

}  // namespace smla
