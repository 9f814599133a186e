// What attend on Hopper takes from its plan.
#pragma once

#include "engines/cuda/attend/sm90/config.h"

namespace smla::cuda_attend::sm90 {

// schedule.coded: fp8_656 records, else bf16 rows; schedule.heads: 64 or, with clusters of two blocks, 128.
void launch(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
            const KeySources& keys, const Env& env);

}  // namespace smla::cuda_attend::sm90
