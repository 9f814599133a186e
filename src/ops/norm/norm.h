// norm: what it means (reference.cpp) and what it accepts. See include/smla/stages_linear.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_linear.h>

namespace smla {

struct NormOp {
    using Args = smla_norm_args;
    static void check(const Args& args, const CheckContext& context = {});
    static int64_t tasks(const Args& args) { return args.x.shape[0]; }  // tokens
    static void reference(const Args& args, int64_t begin, int64_t end);
};

}  // namespace smla
