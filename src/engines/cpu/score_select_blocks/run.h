// score and select within candidate blocks: tiles are filled with the columns of several blocks, so that
// small blocks that lie apart cost what neighbours cost.
#pragma once

#include "engines/candidate.h"

namespace smla {

CallPlan<smla_score_select_blocks_args> plan_streamed_blocks(const smla_score_select_blocks_args& args,
                                                             const Env& env);

}  // namespace smla
