// The generic cpu kernel of a stage: the op's plain loops over ranges of tasks, one range per thread.
#pragma once

#include "engines/candidate.h"

#include <algorithm>

namespace smla {

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
    return {.name = name,
            .refuse = [](const typename Op::Args&, const Env&) { return std::string(); },
            .workspace = [](const typename Op::Args&, const Env&, size_t) { return kWorkspaceHeader; },
            .run = run_cpu_generic<Op>};
}

}  // namespace smla
