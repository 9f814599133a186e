// Positions below and behind the cached context, and the base of an lse: see smla/rows.h.
#pragma once

#include "core/host_device.h"
#include "core/tensor.h"

#include <smla/rows.h>

namespace smla {

SMLA_HOST_DEVICE inline int32_t context_row(int32_t position, int32_t context_len) {
    return position >= 0 && position < context_len ? position : -1;
}
SMLA_HOST_DEVICE inline int32_t new_row(int32_t position, int32_t context_len) {
    return position >= 0 && position >= context_len ? position - context_len : -1;
}
SMLA_HOST_DEVICE inline float lse_from_log2(float log2_lse) {
    return log2_lse * 0.693147180559945309f;  // ln 2
}

void split_context(const smla_split_context_args& args);
void lse_from_log2(const Tensor& log2_lse, const Tensor& lse);

}  // namespace smla
