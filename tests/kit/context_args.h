// What a test says of the context that it makes.
#pragma once

#include <smla/smla.h>

namespace smla::kit {

// threads: 0 is the context's default.
inline smla_context_args context_args(smla_engine engine, int32_t threads = 0) {
    smla_context_args args{};
    args.struct_size = sizeof args;
    args.version = SMLA_VERSION;
    args.engine = engine;
    args.threads = threads;
    return args;
}

}  // namespace smla::kit
