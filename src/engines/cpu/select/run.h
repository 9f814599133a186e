// The candidates of select, and the choice among them that score_select shares.
#pragma once

#include "engines/candidate.h"
#include "engines/cpu/select/kernel.h"

namespace smla {

std::string refuse_select(const SelectKernel& kernel, const smla_select_args& args, const Env& env);
// The kernel that the select stage would run: the one demanded, else the first that can; null: the generic
// loops.
const SelectKernel* chosen_select_kernel(const smla_select_args& args, const Env& env);

CallPlan<smla_select_args> plan_select(const SelectKernel& kernel, const smla_select_args& args,
                                       const Env& env);

}  // namespace smla
