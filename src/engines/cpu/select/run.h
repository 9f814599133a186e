// The select kernels as select and score_select choose among them.
#pragma once

#include "engines/candidate.h"
#include "engines/cpu/select/kernel.h"

namespace smla {

// The kernel's answer to these arguments. Of the scores, only the dtype counts.
Support supports_select(const SelectKernel& kernel, const smla_select_args& args, const Env& env);
// The kernel that the select stage would run. Null if that is cpu_generic_select, or none.
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
