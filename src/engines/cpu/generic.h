// The generic CPU kernel of a stage: the op's plain loops over ranges of tasks, one range per thread.
#pragma once

#include "engines/candidate.h"

#include <algorithm>

namespace smla {

// Support::lower_priority of the kernels that multiply with vdpbf16ps.
inline const char* slow_bf16_dots_here(const Env& env) {
    return env.slow_bf16_dots ? "bf16 dot products on this processor run at a quarter of the f32 rate" : "";
}

template <class Op>
void run_cpu_generic(const typename Op::Args& args, const Env& env) {
    const int64_t tasks = Op::tasks(args);
    if (!env.pool || tasks <= 1) return Op::reference(args, 0, tasks);
    const int64_t ranges = std::min<int64_t>(tasks, 4 * env.threads());
    env.pool->run(ranges, [&](int64_t range, int) {
        Op::reference(args, tasks * range / ranges, tasks * (range + 1) / ranges);
    });
}

template <class Op>
constexpr Candidate<typename Op::Args> cpu_generic(const char* name) {
    using Args = typename Op::Args;
    return {.name = name, .plan = [](const Args&, const Env&) {
                CallPlan<Args> plan;
                plan.launch = run_cpu_generic<Op>;
                plan.rotates_out = true;
                return plan;
            }};
}

}  // namespace smla
