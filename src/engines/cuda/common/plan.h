#pragma once

#include "core/device.h"

namespace smla {

struct PlanJob;

// Two launches, no more: plan/job.h says what they compute.
void build_plan_on_gpu(const PlanJob& job, Device& device, smla_stream stream);

}  // namespace smla
