// The score_select kernels of the cpu engine, best first.
#include "engines/cpu/generic.h"
#include "engines/cpu/score_select/run.h"
#include "ops/score_select/score_select.h"

namespace smla {

template <>
std::span<const Candidate<smla_score_select_args>> cpu_candidates<Stage::score_select>() {
    static constexpr Candidate<smla_score_select_args> rows[] = {
        {.name = "cpu_streamed_score_select", .plan = plan_streamed},
        cpu_generic<ScoreSelectOp>("cpu_generic_score_select")};
    return rows;
}

}  // namespace smla
