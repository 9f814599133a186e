// Launch of attend on Hopper.
#pragma once

#include "engines/cuda/attend/sm90/config.h"

namespace smla::cuda_attend::sm90 {

// schedule.coded: records, else bf16 rows; schedule.heads: 64 or, with clusters of two blocks, 128.
void launch(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
            const KeySources& keys, const Env& env);

// The same for up to 32 heads of fp8_656 or fp8_528 records; schedule.heads: 16 or 32.
void launch_few(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
                const KeySources& keys, const Env& env);

}  // namespace smla::cuda_attend::sm90
