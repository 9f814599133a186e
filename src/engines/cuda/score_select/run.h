// score_select and score_select_blocks on the cuda engine.
#pragma once

#include "engines/candidate.h"

namespace smla::cuda {

extern const Candidate<smla_score_select_args> kStreamedScoreSelect;
extern const Candidate<smla_score_select_blocks_args> kStreamedBlocks, kGenericBlocks;

}  // namespace smla::cuda
