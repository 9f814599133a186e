// Checks of tensors that name the field, and reads and writes of rows as f32 or f64.
#pragma once

#include "core/ints.h"
#include "core/numbers.h"
#include "core/status.h"

#include <smla/types.h>

#include <initializer_list>
#include <span>
#include <string>

namespace smla {

using Tensor = smla_tensor;

// Sets of dtypes, which a check can list.
constexpr uint32_t dtype_bit(smla_dtype dtype) { return 1u << dtype; }
template <class... Dtypes>
constexpr uint32_t dtypes(Dtypes... each) {
    return (dtype_bit(each) | ...);
}
constexpr uint32_t kFloats = dtypes(SMLA_F64, SMLA_F32, SMLA_BF16, SMLA_F16);
constexpr uint32_t kFloat32Or64 = dtypes(SMLA_F64, SMLA_F32);
constexpr uint32_t kInts = dtypes(SMLA_I32, SMLA_I64);
constexpr uint32_t kInt32 = dtypes(SMLA_I32);

const char* dtype_name(smla_dtype dtype);
int dtype_bits(smla_dtype dtype);
std::string describe(const Tensor& tensor);  // "bf16[2,16,576] on cpu"
inline bool present(const Tensor& tensor) { return tensor.ndim != 0; }
int64_t element_count(const Tensor& tensor);
// Returns the bytes from the first element to the end of the last, including gaps.
size_t span_bytes(const Tensor& tensor);

// Requirements on the memory of tensors and caches. By default the memory must exist, on any device.
struct CheckContext {
    bool any_device = true;
    smla_device_type device_type = SMLA_CPU;
    int32_t device_index = 0;
    bool needs_memory = true;  // false: data may be null, as in a size query

    static CheckContext on(smla_device_type type, int32_t index = 0) {
        return {.any_device = false, .device_type = type, .device_index = index};
    }
    CheckContext shapes_only() const {
        CheckContext out = *this;
        out.needs_memory = false;
        return out;
    }
};
inline const CheckContext kOnHost = CheckContext::on(SMLA_CPU);
void check_device(const char* field, smla_device_type type, int32_t index, const CheckContext& context);

constexpr int64_t kAny = -1;  // a dimension of any length

// Throws unless the tensor has an allowed dtype, this shape, and valid strides, sizes and memory.
void check_tensor(const char* field, const Tensor& tensor, uint32_t allowed, std::span<const int64_t> shape,
                  const CheckContext& context = {});
inline void check_tensor(const char* field, const Tensor& tensor, uint32_t allowed,
                         std::initializer_list<int64_t> shape, const CheckContext& context = {}) {
    check_tensor(field, tensor, allowed, std::span<const int64_t>(shape.begin(), shape.size()), context);
}
// Checks an optional tensor likewise; returns whether it is present.
bool check_optional(const char* field, const Tensor& tensor, uint32_t allowed,
                    std::initializer_list<int64_t> shape, const CheckContext& context = {});
// Throws if two elements of a written tensor share an address.
void check_apart(const char* field, const Tensor& tensor);
// Checks only the dtype, for a rule that depends on another field.
void check_dtype(const char* field, const Tensor& tensor, uint32_t allowed);
// Throws unless the innermost dimension is contiguous: kernels read whole rows.
void check_rows(const char* field, const Tensor& tensor);

// Returns a contiguous tensor on the host.
Tensor make_tensor(void* data, smla_dtype dtype, std::initializer_list<int64_t> shape);
inline Tensor make_tensor(const void* data, smla_dtype dtype, std::initializer_list<int64_t> shape) {
    return make_tensor(const_cast<void*>(data), dtype, shape);
}
// tensor[begin:end] along dimension `dim`
Tensor slice(const Tensor& tensor, int dim, int64_t begin, int64_t end);

// Returns the elements in another shape. Dimension 0 keeps its stride; the others must be contiguous.
Tensor reshape_rows(const Tensor& tensor, std::initializer_list<int64_t> inner);
// Returns a contiguous tensor in another shape.
Tensor reshape(const Tensor& tensor, std::initializer_list<int64_t> shape);
// Returns the tensor with its last two dimensions exchanged.
Tensor transposed(const Tensor& tensor);

// Returns the address of the first element of row [i], [i,j] or [i,j,k].
char* address(const Tensor& tensor, int64_t i, int64_t j = 0, int64_t k = 0);

// Loads n values along the last dimension as float or double. Any stride, except for e2m1.
template <class Real>
void load_row(const Tensor& tensor, const char* row, int64_t n, Real* out);
// Stores values of Real, rounded once. Integers and fp8 are not supported.
template <class Real>
void store_row(const Tensor& tensor, char* row, int64_t n, const Real* in);

template <class Real>
Real load_one(const Tensor& tensor, int64_t i, int64_t j = 0, int64_t k = 0) {
    Real value;
    load_row(tensor, address(tensor, i, j, k), 1, &value);
    return value;
}
}  // namespace smla
