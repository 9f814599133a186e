#pragma once

#include "engines/candidate.h"

namespace smla {

void run_cuda_gather(const smla_gather_args& args, const Env& env);

}  // namespace smla
