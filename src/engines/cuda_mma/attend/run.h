// The attend kernels of the portable GPU engine: what launches them.
#pragma once

#include "engines/candidate.h"
#include "engines/cuda_mma/attend/schedule.h"

namespace smla::cuda_attend {

void run_generic(const smla_attend_args& args, const Env& env);

// bf16 products for keys of 576 or 512 values; plan.splits > 1 needs plan.workspace() bytes.
void run_mma(const smla_attend_args& args, const Schedule& schedule, const Env& env);

}  // namespace smla::cuda_attend
