// save_state: what it means (reference.cpp) and what it accepts. See include/smla/stages_cache.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_cache.h>

namespace smla {

struct SaveStateOp {
    using Args = smla_save_state_args;
    static void check(const Args& args, const CheckContext& context = {});
    static int64_t tasks(const Args& args) { return args.slots.shape[0]; }  // tokens with a slot
    static void reference(const Args& args, int64_t begin, int64_t end);
};

}  // namespace smla
