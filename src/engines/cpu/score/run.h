// The candidates of score, and the choice among them that score_select shares.
#pragma once

#include "engines/candidate.h"
#include "engines/cpu/score/kernel.h"

namespace smla {

// Why the kernel cannot run these arguments; empty: it can.
std::string refuse_score(const ScoreKernel& kernel, const smla_score_args& args, const Env& env);
// The kernel that the score stage would run: the one demanded, else the first that can; null for the generic
// loops or for a demand that refuses.
const ScoreKernel* chosen_score_kernel(const smla_score_args& args, const Env& env);

CallPlan<smla_score_args> plan_score(const ScoreKernel& kernel, const smla_score_args& args, const Env& env);

}  // namespace smla
