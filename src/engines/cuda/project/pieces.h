// Tests of operands for access in 16-byte pieces.
#pragma once

#include "core/tensor.h"

#include <cstdint>
#include <initializer_list>

namespace smla::cuda {

// Returns whether the rows along these dimensions begin at multiples of 16 bytes.
inline bool aligned(const smla_tensor& tensor, std::initializer_list<int> dims) {
    uint64_t bits = reinterpret_cast<uintptr_t>(tensor.data);
    for (const int dim : dims)
        if (tensor.shape[dim] > 1) bits |= uint64_t(tensor.stride_elems[dim] * dtype_bits(tensor.dtype) / 8);
    return bits % 16 == 0;
}
inline bool is_half_or_f32(const smla_tensor& tensor) {
    return tensor.dtype == SMLA_F32 || tensor.dtype == SMLA_BF16 || tensor.dtype == SMLA_F16;
}

}  // namespace smla::cuda
