#include "kit/values.h"

#include "core/numbers.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace smla::kit {

void set_element(const Tensor& tensor, int64_t element, double value) {
    auto* bytes = static_cast<uint8_t*>(tensor.data);
    switch (tensor.dtype) {
        case SMLA_E4M3: bytes[element] = f32_to_e4m3(float(value)); break;
        case SMLA_E8M0: bytes[element] = ceil_e8m0(float(value)); break;
        case SMLA_E2M1: {
            uint8_t& pair = bytes[element / 2];
            const int shift = int(element & 1) * 4;
            pair = uint8_t((pair & ~(15 << shift)) | f32_to_e2m1(float(value)) << shift);
            break;
        }
        default: {
            char* to = reinterpret_cast<char*>(bytes) + element * dtype_bits(tensor.dtype) / 8;
            store_row(tensor, to, 1, &value);
        }
    }
}

double get_element(const Tensor& tensor, int64_t element) {
    const char* at = static_cast<const char*>(tensor.data) + element * dtype_bits(tensor.dtype) / 8;
    switch (tensor.dtype) {
        case SMLA_E2M1: return double(e2m1_to_f32(element & 1 ? uint8_t(*at) >> 4 : uint8_t(*at) & 15));
        case SMLA_I32: {
            int32_t value;
            std::memcpy(&value, at, sizeof value);
            return value;
        }
        case SMLA_I64: {
            int64_t value;
            std::memcpy(&value, at, sizeof value);
            return double(value);
        }
        default: {
            double value;
            load_row(tensor, at, 1, &value);
            return value;
        }
    }
}

void set_int(const Tensor& tensor, int64_t i, int64_t j, int64_t value) {
    char* at = static_cast<char*>(tensor.data) + element(tensor, i, j) * dtype_bits(tensor.dtype) / 8;
    const auto narrow = int32_t(value);
    if (tensor.dtype == SMLA_I64) std::memcpy(at, &value, sizeof value);
    else std::memcpy(at, &narrow, sizeof narrow);
}

void fill_normal(const Tensor& tensor, Random& random, double spread) {
    const bool scale = tensor.dtype == SMLA_E8M0;
    each_element(tensor, [&](int64_t element) {
        set_element(tensor, element,
                    scale ? std::exp2(double(random.between(-3, 3))) : spread * random.normal());
    });
}

void fill_constant(const Tensor& tensor, double value) {
    each_element(tensor, [&](int64_t element) { set_element(tensor, element, value); });
}

Doubles Doubles::like(const Tensor& shape) {
    Doubles out;
    if (!present(shape)) return out;
    out.values.assign(size_t(element_count(shape)) + 1, std::numeric_limits<double>::quiet_NaN());
    out.tensor_ = make_tensor(out.values.data(), SMLA_F64, {1});
    out.tensor_.ndim = shape.ndim;
    int64_t stride = 1;
    for (int d = shape.ndim - 1; d >= 0; --d) {
        out.tensor_.shape[d] = shape.shape[d];
        out.tensor_.stride_elems[d] = stride;
        stride *= shape.shape[d];
    }
    out.values.resize(size_t(element_count(shape)));
    return out;
}

Doubles::Doubles(const Tensor& from) {
    *this = like(from);
    size_t at = 0;
    if (present(from))
        each_element(from, [&](int64_t element) { values[at++] = get_element(from, element); });
}

void Doubles::make_absolute() {
    for (double& value : values) value = std::fabs(value);
}

}  // namespace smla::kit
