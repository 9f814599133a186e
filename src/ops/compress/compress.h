// compress: what it means (reference.cpp) and what it accepts. See include/smla/stages_cache.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_cache.h>

namespace smla {

struct CompressOp {
    using Args = smla_compress_args;
    static void check(const Args& args, const CheckContext& context = {});
    static int64_t tasks(const Args& args) { return args.slots.shape[0]; }  // tokens with a slot
    static void reference(const Args& args, int64_t begin, int64_t end);
};

// coff: V4's ratio 4 pools two windows (its own and the one before), all others their own only.
constexpr int64_t overlap(const smla_compress_args& args) {
    return args.ratio == 4 && !args.no_overlap ? 2 : 1;
}

}  // namespace smla
