// Checks and specification of score_select.
#pragma once

#include "ops/ops.h"

namespace smla {

// Return the arguments of score and select on tokens [begin, end) with these logits [end - begin,columns].
smla_score_args score_part(const smla_score_select_args& args, int64_t begin, int64_t end,
                           const Tensor& logits);
smla_select_args select_part(const smla_score_select_args& args, int64_t begin, int64_t end,
                             const Tensor& logits);

}  // namespace smla
