// gather: what it means (reference.cpp) and what it accepts. See include/smla/stages_cache.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_cache.h>

namespace smla {

struct GatherOp {
    using Args = smla_gather_args;
    static void check(const Args& args, const CheckContext& context = {});
    static int64_t tasks(const Args& args) {
        return args.out.shape[0];
    }  // rows of out: one long request still spreads
    static void reference(const Args& args, int64_t begin, int64_t end);
};

}  // namespace smla
