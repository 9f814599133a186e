#pragma once

#include "engines/candidate.h"

namespace smla {

void run_cuda_quant_index_q(const smla_quant_index_q_args& args, const Env& env);

}  // namespace smla
