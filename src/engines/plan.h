// Plans on the device of a context.
#pragma once

#include "engines/context.h"
#include "plan/plan.h"

namespace smla {

inline PlanPlace plan_place(const Context& context) {
    if (context.device().type() == SMLA_CPU) return {};
    return {&context.device(),
            [](const PlanJob& job, Device& device, smla_stream stream) { device.build_plan(job, stream); }};
}

}  // namespace smla
