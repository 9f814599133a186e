// Fields of metadata: each is a handle with a side on the host, where a build writes it, and a side on the
// device, where kernels and callers read it. Without a GPU both sides are one memory.
#pragma once

#include "core/tensor.h"

#include <initializer_list>

namespace smla {

struct Field {
    Tensor host{}, device{};

    // The first n rows of what the field has room for.
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
