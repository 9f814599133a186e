#pragma once

#include "engines/candidate.h"

namespace smla {

void run_cuda_norm(const smla_norm_args& args, const Env& env);

}  // namespace smla
