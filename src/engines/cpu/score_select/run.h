// score and select in one pass: logits leave a tile only as candidates of their row, so scratch does not grow
// with N.
#pragma once

#include "engines/candidate.h"

namespace smla {

CallPlan<smla_score_select_args> plan_streamed(const smla_score_select_args& args, const Env& env);

}  // namespace smla
