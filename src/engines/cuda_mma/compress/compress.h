#pragma once

#include "engines/candidate.h"

namespace smla {

void run_cuda_compress(const smla_compress_args& args, const Env& env);

}  // namespace smla
