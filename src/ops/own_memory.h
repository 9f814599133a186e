// Checks that written tensors overlap no others, for calls without a field table; stages use field.h.
#pragma once

#include "core/tensor.h"

#include <initializer_list>

namespace smla {

struct NamedField {
    const char* field;
    const Tensor& tensor;
};
// Throws if a written tensor shares memory with another one, or two of its elements share memory. All tensors
// have passed check_tensor() or are absent. `in_place` is the tensor of `read` that an output may be.
void check_own_memory(std::initializer_list<NamedField> written, std::initializer_list<NamedField> read,
                      const Tensor* in_place = nullptr);

}  // namespace smla
