// Reads integers of tensors, on the host and in kernels.
#pragma once

#include "core/host_device.h"

#include <smla/types.h>

#include <cstdint>

namespace smla {

// Returns an element of an i32 or i64 tensor of one or two dimensions with any strides.
SMLA_HOST_DEVICE inline int64_t load_int(const smla_tensor& tensor, int64_t i, int64_t j = 0) {
    int64_t at = i * tensor.stride_elems[0];
    if (tensor.ndim > 1) at += j * tensor.stride_elems[1];
    return tensor.dtype == SMLA_I64 ? static_cast<const int64_t*>(tensor.data)[at]
                                    : static_cast<const int32_t*>(tensor.data)[at];
}

}  // namespace smla
