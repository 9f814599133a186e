// Runs attend with one set of microkernels.
#pragma once

#include "engines/cpu/attend/plan.h"

namespace smla::cpu_attend {

void run(const smla_attend_args& args, const Micro& micro, const Env& env);

}  // namespace smla::cpu_attend
