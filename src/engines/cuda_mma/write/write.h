#pragma once

#include "engines/candidate.h"

namespace smla {

void run_cuda_write(const smla_write_args& args, const Env& env);

}  // namespace smla
