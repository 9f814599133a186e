// Metadata fields. A build writes a field's host side; kernels and callers read its device side. Without a
// GPU, host side and device side are the same memory.
#pragma once

#include "core/tensor.h"

#include <initializer_list>

namespace smla {

struct Field {
    Tensor host{}, device{};

    // Sets both sides to their first n rows.
    void resize(int64_t n) { host.shape[0] = device.shape[0] = n; }
};

inline Field slice(const Field& field, int dim, int64_t begin, int64_t end) {
    if (!present(field.host)) return field;
    return {slice(field.host, dim, begin, end), slice(field.device, dim, begin, end)};
}
inline Field reshape_rows(const Field& field, std::initializer_list<int64_t> inner) {
    return {reshape_rows(field.host, inner), reshape_rows(field.device, inner)};
}

inline int32_t* ints(const Tensor& tensor) { return static_cast<int32_t*>(tensor.data); }
inline int32_t* ints(const Field& field) { return ints(field.host); }

}  // namespace smla
