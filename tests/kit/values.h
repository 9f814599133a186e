// Access to single values of tensors with any dtype and strides, through the library's conversions.
#pragma once

#include "core/tensor.h"
#include "kit/random.h"

#include <cstdint>
#include <vector>

namespace smla::kit {

// Calls use(i, j, k, l) for every element of a tensor.
template <class Use>
void each_index(const Tensor& tensor, const Use& use) {
    int64_t n[SMLA_MAX_NDIM];
    for (int d = 0; d < SMLA_MAX_NDIM; ++d) n[d] = d < tensor.ndim ? tensor.shape[d] : 1;
    for (int64_t i = 0; i < n[0]; ++i)
        for (int64_t j = 0; j < n[1]; ++j)
            for (int64_t k = 0; k < n[2]; ++k)
                for (int64_t l = 0; l < n[3]; ++l) use(i, j, k, l);
}

// Returns the offset of an element in elements. Indices of dimensions that the tensor does not have are 0.
inline int64_t element(const Tensor& tensor, int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) {
    const int64_t index[SMLA_MAX_NDIM] = {i, j, k, l};
    int64_t out = 0;
    for (int d = 0; d < tensor.ndim; ++d) out += index[d] * tensor.stride_elems[d];
    return out;
}

// Calls use(element(tensor, ...)) for every element.
template <class Use>
void each_element(const Tensor& tensor, const Use& use) {
    each_index(tensor, [&](int64_t i, int64_t j, int64_t k, int64_t l) { use(element(tensor, i, j, k, l)); });
}

void set_element(const Tensor& tensor, int64_t element, double value);  // floats, e4m3, e2m1 and e8m0
double get_element(const Tensor& tensor, int64_t element);              // also for integers
inline void set_value(const Tensor& tensor, int64_t i, int64_t j, int64_t k, int64_t l, double value) {
    set_element(tensor, element(tensor, i, j, k, l), value);
}
void set_int(const Tensor& tensor, int64_t i, int64_t j, int64_t value);
void fill_normal(const Tensor& tensor, Random& random, double spread);  // scales are near 1
void fill_constant(const Tensor& tensor, double value);

// A contiguous f64 tensor that owns its memory.
class Doubles {
public:
    Doubles() = default;
    explicit Doubles(const Tensor& from);
    static Doubles like(const Tensor& shape);         // filled with NaN
    const Tensor& tensor() const { return tensor_; }  // valid while this object exists and is not copied
    Doubles(Doubles&&) = default;
    Doubles& operator=(Doubles&&) = default;
    void make_absolute();

    std::vector<double> values;

private:
    Tensor tensor_{};
};

}  // namespace smla::kit
