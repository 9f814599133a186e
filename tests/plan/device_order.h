// A build as the kernels of a GPU go about it, on the host: one pass over requests, then tokens and single
// rows in any order, through the rule that the kernels share.
#pragma once

#include "plan/plan.h"

namespace smla::test {

void build_in_device_order(const PlanJob& job, Device& device, smla_stream stream);
inline PlanPlace device_order() { return {&host_device(), build_in_device_order}; }

}  // namespace smla::test
