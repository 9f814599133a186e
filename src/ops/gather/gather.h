// gather: what it means (reference.cpp) and what it accepts. See include/smla/stages_cache.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_cache.h>

namespace smla {

struct GatherOp {
    using Args = smla_gather_args;
    static void check(const Args& args, const CheckContext& context = {});
    // Rows of out, so that one long request is spread over threads, too.
    static int64_t tasks(const Args& args) { return args.out.shape[0]; }
    static void reference(const Args& args, int64_t begin, int64_t end);
};

}  // namespace smla
