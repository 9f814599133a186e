// merge: what it means (reference.cpp) and what it accepts. See include/smla/stages_attend.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_attend.h>

namespace smla {

struct MergeOp {
    using Args = smla_merge_args;
    static void check(const Args& args, const CheckContext& context = {});
    static int64_t tasks(const Args& args) { return args.partials.shape[1]; }  // tokens
    static void reference(const Args& args, int64_t begin, int64_t end);
};

}  // namespace smla
