// score_select: what it means (reference.cpp) and what it accepts. See include/smla/stages_index.h.
#pragma once

#include "ops/ops.h"

namespace smla {

// The two stages that the fused one stands for, on tokens [begin, end) with the given logits [end - begin,
// columns].
smla_score_args score_part(const smla_score_select_args& args, int64_t begin, int64_t end,
                           const Tensor& logits);
smla_select_args select_part(const smla_score_select_args& args, int64_t begin, int64_t end,
                             const Tensor& logits);

}  // namespace smla
