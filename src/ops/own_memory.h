// What a call writes has memory of its own: calls without a table of fields. field.h has the same for stages.
#pragma once

#include "core/tensor.h"

#include <initializer_list>

namespace smla {

struct NamedField {
    const char* field;
    const Tensor& tensor;
};
// Throws if a tensor that is written shares memory with another one, or two of its elements with each other.
// All have passed check_tensor() or are absent. `in_place`: the tensor of `read` that an output may be.
void check_own_memory(std::initializer_list<NamedField> written, std::initializer_list<NamedField> read,
                      const Tensor* in_place = nullptr);

}  // namespace smla
