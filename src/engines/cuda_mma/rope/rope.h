#pragma once

#include "engines/candidate.h"

namespace smla {

constexpr int64_t kMaxRopePairs = 4096;  // their cosines and sines in shared memory: 32 KB

void run_cuda_rope(const smla_rope_args& args, const Env& env);

}  // namespace smla
