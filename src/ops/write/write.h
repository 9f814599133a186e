// write_kv and write_index: what they mean (reference.cpp) and what they accept. Fields: smla/stages_cache.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_cache.h>

namespace smla {

struct WriteOp {
    using Args = smla_write_args;
    static int64_t tasks(const Args& args) { return args.slots.shape[0]; }  // tokens with a slot
    static void reference(const Args& args, int64_t begin, int64_t end);
};
struct WriteKvOp : WriteOp {
    static void check(const Args& args, const CheckContext& context = {});  // KV formats
};
struct WriteIndexOp : WriteOp {
    static void check(const Args& args, const CheckContext& context = {});  // index formats; hadamard allowed
};

}  // namespace smla
