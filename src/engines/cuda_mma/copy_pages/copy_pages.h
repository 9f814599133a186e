#pragma once

#include "engines/candidate.h"

namespace smla {

void run_cuda_copy_pages(const smla_copy_pages_args& args, const Env& env);

}  // namespace smla
