// Runs attend as it was planned, with the plan's microkernels.
#pragma once

#include "engines/cpu/attend/plan.h"

namespace smla::cpu_attend {

void run(const smla_attend_args& args, const Plan& plan, const Env& env);

}  // namespace smla::cpu_attend
