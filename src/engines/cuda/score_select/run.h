// score_select on the cuda engine.
#pragma once

#include "engines/candidate.h"

namespace smla::cuda {

extern const Candidate<smla_score_select_args> kStreamedScoreSelect;

}  // namespace smla::cuda
