// score_select: what it means (reference.cpp) and what it accepts. See include/smla/stages_index.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_index.h>

namespace smla {

struct ScoreSelectOp {
    using Args = smla_score_select_args;
    static void check(const Args& args, const CheckContext& context = {});
    static int64_t tasks(const Args& args) { return args.score.q.shape[0]; }  // tokens
    static void reference(const Args& args, int64_t begin, int64_t end);
};

// The two stages that the fused one stands for, on tokens [begin, end) with the given logits [end - begin,
// columns].
smla_score_args score_part(const smla_score_select_args& args, int64_t begin, int64_t end,
                           const Tensor& logits);
smla_select_args select_part(const smla_score_select_args& args, int64_t begin, int64_t end,
                             const Tensor& logits);

}  // namespace smla
