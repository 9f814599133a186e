// The reference engine: every stage is its op's plain loops on one thread, for all shapes and formats.
#include "engines/candidate.h"
#include "ops/ops.h"

namespace smla {

namespace {

template <class Op>
constexpr Candidate<typename Op::Args> kReference = {
    .name = "reference",
    .plan =
        [](const typename Op::Args&, const Env&) {
            CallPlan<typename Op::Args> plan;
            plan.launch = [](const typename Op::Args& args, const Env&) {
                Op::reference(args, 0, Op::tasks(args));
            };
            plan.rotates_out = true;
            return plan;
        },
};

}  // namespace

#define SMLA_TABLE(name, args)                                             \
    template <>                                                            \
    std::span<const Candidate<args>> reference_candidates<Stage::name>() { \
        return {&kReference<OpOf<Stage::name>>, 1};                        \
    }
SMLA_STAGES(SMLA_TABLE)
#undef SMLA_TABLE

}  // namespace smla
