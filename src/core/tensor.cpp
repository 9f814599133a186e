#include "core/tensor.h"

#include "core/e4m3_table.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace smla {

namespace {
struct DtypeInfo {
    const char* name;
    int bits;
};
constexpr DtypeInfo kDtypes[] = {{"none", 0}, {"f64", 64}, {"f32", 32}, {"bf16", 16},
                                 {"f16", 16}, {"e4m3", 8}, {"e2m1", 4}, {"e8m0", 8},
                                 {"u8", 8},   {"i32", 32}, {"i64", 64}};
constexpr int kDtypeCount = int(sizeof kDtypes / sizeof kDtypes[0]);
constexpr int64_t kMaxElements = int64_t(1) << 48;  // keeps strides times shapes far from overflow

std::string shape_text(const int64_t* shape, int ndim) {
    std::string out = "[";
    for (int i = 0; i < ndim; ++i) {
        if (i) out += ',';
        out += shape[i] == kAny ? std::string("any") : std::to_string(shape[i]);
    }
    return out + "]";
}

std::string dtype_list(uint32_t allowed) {
    std::string out;
    for (int d = 1; d < kDtypeCount; ++d)
        if (allowed & dtype_bit(d)) out += (out.empty() ? "" : ", ") + std::string(kDtypes[d].name);
    return out;
}

void check_extent(const char* field, const Tensor& tensor, const CheckContext& context) {
    int64_t elements = 1;
    for (int i = 0; i < tensor.ndim; ++i) {
        const auto name = [&] { return text(field, ".shape[", i, "]"); };
        SMLA_CHECK(tensor.shape[i] >= 0, name(), tensor.shape[i], "0 or more");
        SMLA_CHECK(tensor.shape[i] == 0 || elements <= kMaxElements / tensor.shape[i], name(),
                   tensor.shape[i], "at most 2^48 elements in total");
        elements *= tensor.shape[i];
        const int64_t stride = tensor.stride_elems[i];
        SMLA_CHECK(stride >= 0 && (tensor.shape[i] <= 1 || stride <= kMaxElements / tensor.shape[i]),
                   text(field, ".stride_elems[", i, "]"), stride,
                   "0 or more, spanning at most 2^48 elements");
    }
    SMLA_CHECK(tensor.data || elements == 0 || !context.needs_memory, text(field, ".data"), "null",
               text("memory for ", describe(tensor)));
    const auto alignment = uintptr_t(std::max(dtype_bits(tensor.dtype) / 8, 1));
    SMLA_CHECK(reinterpret_cast<uintptr_t>(tensor.data) % alignment == 0, text(field, ".data"),
               text("address % ", alignment, " = ", reinterpret_cast<uintptr_t>(tensor.data) % alignment),
               text("an address aligned to ", alignment, " bytes (the element size)"));
}

std::string device_name(smla_device_type type, int32_t index) {
    if (type == SMLA_CPU) return "cpu";
    return type == SMLA_CUDA ? text("cuda:", index) : text("device type ", type);
}
}  // namespace

void check_device(const char* field, smla_device_type type, int32_t index, const CheckContext& context) {
    SMLA_CHECK(context.any_device ||
                   (type == context.device_type && (type == SMLA_CPU || index == context.device_index)),
               text(field, ".device"), device_name(type, index),
               text(device_name(context.device_type, context.device_index), " (the device of the context)"));
}

const char* dtype_name(smla_dtype dtype) {
    return dtype > 0 && dtype < kDtypeCount ? kDtypes[dtype].name : "unknown";
}
int dtype_bits(smla_dtype dtype) { return dtype > 0 && dtype < kDtypeCount ? kDtypes[dtype].bits : 0; }

std::string describe(const Tensor& tensor) {
    if (!present(tensor)) return "absent";
    const int ndim = tensor.ndim < 0 ? 0 : tensor.ndim > SMLA_MAX_NDIM ? SMLA_MAX_NDIM : tensor.ndim;
    return text(dtype_name(tensor.dtype), shape_text(tensor.shape, ndim),
                tensor.device_type == SMLA_CPU ? " on cpu" : " on cuda");
}

int64_t element_count(const Tensor& tensor) {
    if (!present(tensor)) return 0;
    int64_t n = 1;
    for (int i = 0; i < tensor.ndim; ++i) n *= tensor.shape[i];
    return n;
}

size_t span_bytes(const Tensor& tensor) {
    if (element_count(tensor) == 0) return 0;
    int64_t last = 0;
    for (int d = 0; d < tensor.ndim; ++d) last += (tensor.shape[d] - 1) * tensor.stride_elems[d];
    return (size_t(last + 1) * size_t(dtype_bits(tensor.dtype)) + 7) / 8;
}

void check_tensor(const char* field, const Tensor& tensor, uint32_t allowed, std::span<const int64_t> shape,
                  const CheckContext& context) {
    const int ndim = int(shape.size());
    // the text is built only on failure, because checks of hot calls must not allocate
    const auto wanted = [&] { return text(dtype_list(allowed), " ", shape_text(shape.data(), ndim)); };
    SMLA_CHECK(tensor.ndim >= 0 && tensor.ndim <= SMLA_MAX_NDIM, text(field, ".ndim"), tensor.ndim, wanted());
    SMLA_CHECK(present(tensor), field, "absent", wanted());
    SMLA_CHECK(
        tensor.dtype > 0 && tensor.dtype < kDtypeCount && (allowed & dtype_bit(tensor.dtype)),
        text(field, ".dtype"),
        tensor.dtype > 0 && tensor.dtype < kDtypeCount ? text(dtype_name(tensor.dtype)) : text(tensor.dtype),
        wanted());
    bool same = tensor.ndim == ndim;
    for (int i = 0; same && i < ndim; ++i)
        same = shape[size_t(i)] == kAny || shape[size_t(i)] == tensor.shape[i];
    SMLA_CHECK(same, text(field, ".shape"), shape_text(tensor.shape, tensor.ndim), wanted());
    check_device(field, tensor.device_type, tensor.device_index, context);
    check_extent(field, tensor, context);
}

bool check_optional(const char* field, const Tensor& tensor, uint32_t allowed,
                    std::initializer_list<int64_t> shape, const CheckContext& context) {
    if (tensor.ndim == 0) return false;
    check_tensor(field, tensor, allowed, shape, context);
    return true;
}

namespace {

struct Step {
    int64_t count, stride;
    int64_t reach;  // largest offset within this and all later dimensions
};

// Returns whether offset `from` becomes 0 by n_i steps along each dimension i, |n_i| < count_i, not all n_i 0
// (`moved`: an earlier n_i is not 0). Returns true after `patience` tries; nested layouts need one try per
// dimension.
bool meets(std::span<const Step> steps, int64_t from, bool moved, int& patience) {
    if (steps.empty()) return moved && from == 0;
    const auto [count, stride, reach] = steps.front();
    const int64_t further = reach - (count - 1) * stride;
    const int64_t low = std::max(1 - count, -(further + from) / stride),
                  high = std::min(count - 1, (further - from) / stride);
    for (int64_t n = low; n <= high; ++n)
        if (--patience < 0 || meets(steps.subspan(1), from + n * stride, moved || n != 0, patience))
            return true;
    return false;
}

// Checks tensors of three dimensions or more whose pairs of dimensions have passed.
void check_all_apart(const char* field, const Tensor& tensor) {
    std::array<Step, SMLA_MAX_NDIM> steps{};  // the sort moves unused dimensions to the end
    size_t count = 0;
    for (int i = 0; i < tensor.ndim; ++i)
        if (tensor.shape[i] > 1) steps[count++] = {tensor.shape[i], tensor.stride_elems[i], 0};
    if (count < 3) return;
    std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.stride > b.stride; });
    for (size_t i = count; i-- > 0;)
        steps[i].reach = (steps[i].count - 1) * steps[i].stride + (i + 1 < count ? steps[i + 1].reach : 0);
    int patience = 1 << 14;
    SMLA_CHECK(!meets({steps.data(), count}, 0, false, patience), text(field, ".stride_elems"),
               text("two elements at one address in ", describe(tensor)),
               "a distinct address for each element");
}

}  // namespace

void check_apart(const char* field, const Tensor& tensor) {
    if (element_count(tensor) == 0) return;
    const auto& shape = tensor.shape;
    const auto& stride = tensor.stride_elems;
    for (int i = 0; i < tensor.ndim; ++i) {
        if (shape[i] == 1) continue;
        SMLA_CHECK(stride[i] > 0, text(field, ".stride_elems[", i, "]"), stride[i],
                   text("at least 1, because the call writes ", shape[i], " distinct elements"));
        for (int j = 0; j < i; ++j) {
            if (shape[j] == 1 || stride[j] >= shape[i] * stride[i] || stride[i] >= shape[j] * stride[j])
                continue;
            const int64_t both = std::gcd(stride[i], stride[j]);
            SMLA_CHECK(stride[j] / both >= shape[i] || stride[i] / both >= shape[j],
                       text(field, ".stride_elems[", j, "]"), stride[j],
                       text("a stride that does not overlap dimension ", i, " (", shape[i],
                            " elements with stride ", stride[i], ")"));
        }
    }
    check_all_apart(field, tensor);
}

void check_dtype(const char* field, const Tensor& tensor, uint32_t allowed) {
    const bool known = tensor.dtype > 0 && tensor.dtype < kDtypeCount;
    SMLA_CHECK(known && (allowed & dtype_bit(tensor.dtype)), text(field, ".dtype"),
               known ? text(dtype_name(tensor.dtype)) : text(tensor.dtype), dtype_list(allowed));
}

void check_rows(const char* field, const Tensor& tensor) {
    const int last = tensor.ndim - 1;
    SMLA_CHECK(last < 0 || tensor.shape[last] <= 1 || tensor.stride_elems[last] == 1,
               text(field, ".stride_elems[", last, "]"), tensor.stride_elems[last], "1");
}

Tensor make_tensor(void* data, smla_dtype dtype, std::initializer_list<int64_t> shape) {
    Tensor tensor{};
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.ndim = int32_t(shape.size());
    int64_t stride = 1;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
        tensor.shape[i] = shape.begin()[i];
        tensor.stride_elems[i] = stride;
        stride *= tensor.shape[i];
    }
    return tensor;
}

Tensor slice(const Tensor& tensor, int dim, int64_t begin, int64_t end) {
    Tensor out = tensor;
    out.shape[dim] = end - begin;
    if (out.data)
        out.data =
            static_cast<char*>(out.data) + begin * tensor.stride_elems[dim] * dtype_bits(tensor.dtype) / 8;
    return out;
}

Tensor reshape_rows(const Tensor& tensor, std::initializer_list<int64_t> inner) {
    Tensor out = tensor;
    out.ndim = 1 + int32_t(inner.size());
    int64_t stride = 1;
    for (int i = out.ndim - 1; i > 0; --i) {
        out.shape[i] = inner.begin()[i - 1];
        out.stride_elems[i] = stride;
        stride *= out.shape[i];
    }
    return out;
}

Tensor reshape(const Tensor& tensor, std::initializer_list<int64_t> shape) {
    Tensor out = make_tensor(tensor.data, tensor.dtype, shape);
    out.device_type = tensor.device_type;
    out.device_index = tensor.device_index;
    return out;
}

Tensor transposed(const Tensor& tensor) {
    Tensor out = tensor;
    const int last = tensor.ndim - 1;
    std::swap(out.shape[last], out.shape[last - 1]);
    std::swap(out.stride_elems[last], out.stride_elems[last - 1]);
    return out;
}

char* address(const Tensor& tensor, int64_t i, int64_t j, int64_t k) {
    int64_t at = i * tensor.stride_elems[0];
    if (tensor.ndim > 1) at += j * tensor.stride_elems[1];
    if (tensor.ndim > 2) at += k * tensor.stride_elems[2];
    if (!tensor.data) return nullptr;  // a tensor without elements may have rows of width 0
    return static_cast<char*>(tensor.data) + at * dtype_bits(tensor.dtype) / 8;
}

template <class Real>
void load_row(const Tensor& tensor, const char* row, int64_t n, Real* out) {
    const int64_t step = tensor.stride_elems[tensor.ndim - 1];
    const auto each = [&]<class Stored>(Stored, auto convert) {
        const Stored* in = reinterpret_cast<const Stored*>(row);
        if (step == 1 || n == 1) {
            for (int64_t i = 0; i < n; ++i) out[i] = Real(convert(in[i]));
        } else {
            for (int64_t i = 0; i < n; ++i) out[i] = Real(convert(in[i * step]));
        }
    };
    switch (tensor.dtype) {
        case SMLA_F64: return each(double{}, [](double v) { return v; });
        case SMLA_F32: return each(float{}, [](float v) { return v; });
        case SMLA_BF16: return each(uint16_t{}, [](uint16_t v) { return bf16_to_f32(v); });
        case SMLA_F16: return each(uint16_t{}, [](uint16_t v) { return f16_to_f32(v); });
        case SMLA_E4M3: return each(uint8_t{}, [](uint8_t v) { return kE4m3Values[v]; });
        case SMLA_E8M0: return each(uint8_t{}, [](uint8_t v) { return e8m0_to_f32(v); });
        case SMLA_E2M1:
            for (int64_t i = 0; i < n; ++i)
                out[i] = Real(e2m1_to_f32(uint8_t(row[i / 2]) >> (4 * (i & 1)) & 15));
            return;
        default: fail(SMLA_INTERNAL, "load_row", dtype_name(tensor.dtype), "a floating dtype");
    }
}

template <class Real>
void store_row(const Tensor& tensor, char* row, int64_t n, const Real* in) {
    const int64_t step = tensor.stride_elems[tensor.ndim - 1];
    const auto each = [&]<class Stored>(Stored, auto convert) {
        Stored* out = reinterpret_cast<Stored*>(row);
        for (int64_t i = 0; i < n; ++i) out[i * step] = Stored(convert(in[i]));
    };
    switch (tensor.dtype) {
        case SMLA_F64: return each(double{}, [](Real v) { return v; });
        case SMLA_F32: return each(float{}, [](Real v) { return float(v); });
        case SMLA_BF16: return each(uint16_t{}, [](Real v) { return f32_to_bf16(float(v)); });
        case SMLA_F16: return each(uint16_t{}, [](Real v) { return f32_to_f16(float(v)); });
        default: fail(SMLA_INTERNAL, "store_row", dtype_name(tensor.dtype), "f64, f32, bf16 or f16");
    }
}

template void load_row<float>(const Tensor&, const char*, int64_t, float*);
template void load_row<double>(const Tensor&, const char*, int64_t, double*);
template void store_row<float>(const Tensor&, char*, int64_t, const float*);
template void store_row<double>(const Tensor&, char*, int64_t, const double*);

}  // namespace smla
