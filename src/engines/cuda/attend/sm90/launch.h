// Launch of attend on Hopper.
#pragma once

#include "engines/cuda/attend/sm90/config.h"

namespace smla::cuda_attend::sm90 {

// Blocks of 64 heads or, with clusters of two blocks, 128.
void launch(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
            const KeySources& keys, const Env& env);

// The same for fp8_656, fp8_528, fp8_576 or fp8_512 records as stored, in blocks of 16, 32 or 64 heads.
void launch_raw(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
                const KeySources& keys, const Env& env);

}  // namespace smla::cuda_attend::sm90
