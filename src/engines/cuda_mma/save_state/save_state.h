#pragma once

#include "engines/candidate.h"

namespace smla {

void run_cuda_save_state(const smla_save_state_args& args, const Env& env);

}  // namespace smla
