// The merge kernel of the portable GPU engine.
#pragma once

#include "engines/candidate.h"

namespace smla::cuda_merge {

void run_generic(const smla_merge_args& args, const Env& env);

}  // namespace smla::cuda_merge
