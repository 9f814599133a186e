// Plans on the device of a context.
#pragma once

#include "engines/context.h"
#include "engines/cuda/common/plan.h"
#include "plan/plan.h"

namespace smla {

inline PlanPlace plan_place(const Context& context) {
    if (context.device().type() == SMLA_CPU) return {};
    return {&context.device(), build_plan_on_gpu};
}

}  // namespace smla
