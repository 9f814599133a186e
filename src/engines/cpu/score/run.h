// Score kernels, and their selection for score and score_select.
#pragma once

#include "engines/candidate.h"
#include "engines/cpu/score/kernel.h"

namespace smla {

// Returns the kernel's answer to these arguments. Ignores the logits.
Support supports_score(const ScoreKernel& kernel, const smla_score_args& args, const Env& env);
// Returns the kernel that the score stage would run; null for cpu_generic_score or none.
const ScoreKernel* choose_score_kernel(const smla_score_args& args, const Env& env);

CallPlan<smla_score_args> plan_score(const ScoreKernel& kernel, const smla_score_args& args, const Env& env);

template <const ScoreKernel& Kernel>
constexpr Candidate<smla_score_args> score_candidate() {
    return {.name = Kernel.name, .plan = [](const smla_score_args& args, const Env& env) {
                return plan_score(Kernel, args, env);
            }};
}

}  // namespace smla
