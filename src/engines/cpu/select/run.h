// Select kernels, and their selection for select and score_select.
#pragma once

#include "engines/candidate.h"
#include "engines/cpu/select/kernel.h"

namespace smla {

// Returns the kernel's answer to these arguments. Reads only the dtype of the scores.
Support supports_select(const SelectKernel& kernel, const smla_select_args& args, const Env& env);
// Returns the kernel that the select stage would run; null for cpu_generic_select or none.
const SelectKernel* choose_select_kernel(const smla_select_args& args, const Env& env);

CallPlan<smla_select_args> plan_select(const SelectKernel& kernel, const smla_select_args& args,
                                       const Env& env);

template <const SelectKernel& Kernel>
constexpr Candidate<smla_select_args> select_candidate() {
    return {.name = Kernel.name, .plan = [](const smla_select_args& args, const Env& env) {
                return plan_select(Kernel, args, env);
            }};
}

}  // namespace smla
