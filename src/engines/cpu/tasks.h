// Runs tasks on the threads of a call's environment.
#pragma once

#include "core/interrupt.h"
#include "engines/candidate.h"

namespace smla {

// Calls body(i, worker) for every i. Without a pool, worker 0 runs all tasks in order.
template <class Body>
void run_tasks(const Env& env, int64_t tasks, const Body& body) {
    if (env.pool) return env.pool->run(tasks, body);
    for (int64_t i = 0; i < tasks; ++i) {
        stop_point();
        body(i, 0);
    }
}

}  // namespace smla
