#pragma once

#include "engines/candidate.h"

namespace smla {

void run_cuda_map(const smla_map_args& args, const Env& env);

}  // namespace smla
