// The rows of the products' candidate table, each in a file of its own.
#pragma once

#include "engines/cpu/generic.h"
#include "ops/ops.h"

namespace smla::cpu_project {

using Args = smla_project_args;

extern const Candidate<Args> kFewTokens512, kFewTokens256;  // few_tokens.cpp, x86-64 only

}  // namespace smla::cpu_project
