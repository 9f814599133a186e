// Arguments of a context that a test creates.
#pragma once

#include <smla/smla.h>

namespace smla::kit {

// threads: 0 means the context's default.
inline smla_context_args context_args(smla_engine engine, int32_t threads = 0) {
    smla_context_args args{};
    args.struct_size = sizeof args;
    args.version = SMLA_VERSION;
    args.engine = engine;
    args.threads = threads;
    return args;
}

}  // namespace smla::kit
