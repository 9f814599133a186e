// Checks and specification of quant_index_q.
#pragma once

#include "ops/ops.h"

namespace smla {

constexpr int64_t kQueryScaleGroup = 32;  // e2m1 values that share one e8m0 scale

// Throws unless all rows of an e2m1 tensor begin at a whole byte.
void check_even_strides(const char* field, const Tensor& tensor);

}  // namespace smla
