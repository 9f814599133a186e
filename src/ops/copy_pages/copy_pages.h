// copy_pages: what it means (reference.cpp) and what it accepts. See include/smla/stages_cache.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_cache.h>

namespace smla {

struct CopyPagesOp {
    using Args = smla_copy_pages_args;
    static void check(const Args& args, const CheckContext& context = {});
    static int64_t tasks(const Args& args) { return args.pairs.shape[0]; }  // pages
    static void reference(const Args& args, int64_t begin, int64_t end);
};

}  // namespace smla
