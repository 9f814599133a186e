#include "model/dequantise.h"

#include "core/workspace.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <vector>

namespace smla {

namespace {

constexpr std::align_val_t kAlignment{kCacheLine};

HostTensor allocate_like(const Tensor& shape, smla_dtype dtype) {
    HostTensor out;
    out.view = shape;
    out.view.dtype = dtype;
    int64_t stride = 1;
    for (int i = shape.ndim - 1; i >= 0; --i) {
        out.view.stride_elems[i] = stride;
        stride *= std::max<int64_t>(shape.shape[i], 1);
    }
    const size_t bytes = size_t(element_count(shape)) * size_t(dtype_bits(dtype) / 8);
    void* data = ::operator new(std::max<size_t>(bytes, 1), kAlignment);
    out.memory = std::shared_ptr<const void>(
        data, [](const void* at) { ::operator delete(const_cast<void*>(at), kAlignment); });
    out.view.data = data;
    return out;
}

char* advance(const Tensor& tensor, int64_t elements) {
    return static_cast<char*>(tensor.data) + elements * dtype_bits(tensor.dtype) / 8;
}

constexpr int64_t kChunk = 1024;  // elements converted at a time

// Both tensors contiguous.
template <class Real>
void convert_all(const Tensor& from, Tensor to) {
    Real buffer[kChunk];
    const int64_t count = element_count(from);
    Tensor flat_from = make_tensor(from.data, from.dtype, {count}),
           flat_to = make_tensor(to.data, to.dtype, {count});
    for (int64_t at = 0; at < count; at += kChunk) {
        const int64_t n = std::min(kChunk, count - at);
        load_row(flat_from, advance(flat_from, at), n, buffer);
        store_row(flat_to, advance(flat_to, at), n, buffer);
    }
}

// Returns the index of the first NaN or infinity, or -1. Integer comparisons of exponents let the loop
// vectorize.
template <class Bits, int ExponentBits, int FractionBits>
int64_t first_with_full_exponent(const void* data, int64_t count) {
    constexpr Bits kExponent = Bits((Bits(1) << ExponentBits) - 1) << FractionBits;
    const Bits* const bits = static_cast<const Bits*>(data);
    for (int64_t at = 0; at < count; at += kChunk) {
        const int64_t end = std::min(count, at + kChunk);
        Bits found = 0;
        for (int64_t i = at; i < end; ++i) found |= Bits((bits[i] & kExponent) == kExponent);
        if (!found) continue;
        while ((bits[at] & kExponent) != kExponent) ++at;
        return at;
    }
    return -1;
}

template <class Real>
void dequantise_rows(const Tensor& codes, const Tensor& scale, BlockSize block, const Tensor& out) {
    std::array<Real, 256> values;
    for (int code = 0; code < 256; ++code) values[size_t(code)] = Real(e4m3_to_f32(uint8_t(code)));
    const int64_t columns = codes.shape[1];
    std::vector<Real> row(static_cast<size_t>(columns)), scales(size_t(scale.shape[1]));
    for (int64_t r = 0; r < codes.shape[0]; ++r) {
        if (r % block.rows == 0)
            load_row(scale, address(scale, r / block.rows), scale.shape[1], scales.data());
        const uint8_t* in = reinterpret_cast<const uint8_t*>(address(codes, r));
        for (int64_t b = 0; b < scale.shape[1]; ++b) {
            const int64_t end = std::min(columns, (b + 1) * block.columns);
            for (int64_t c = b * block.columns; c < end; ++c)
                row[size_t(c)] = values[in[c]] * scales[size_t(b)];
        }
        store_row(out, address(out, r), columns, row.data());
    }
}

}  // namespace

bool is_contiguous(const Tensor& tensor) {
    int64_t stride = 1;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
        if (tensor.shape[i] == 0) return true;
        if (tensor.shape[i] > 1 && tensor.stride_elems[i] != stride) return false;
        stride *= tensor.shape[i];
    }
    return true;
}

HostTensor packed(const HostTensor& stored) {
    HostTensor out = allocate_like(stored.view, stored.view.dtype);
    const int64_t count = element_count(stored.view), bytes = dtype_bits(stored.view.dtype) / 8;
    char* to = static_cast<char*>(out.view.data);
    for (int64_t i = 0; i < count; ++i, to += bytes) {
        int64_t at = 0;
        for (int64_t d = stored.view.ndim - 1, rest = i; d >= 0; rest /= stored.view.shape[d], --d)
            at += rest % stored.view.shape[d] * stored.view.stride_elems[d];
        std::memcpy(to, static_cast<const char*>(stored.view.data) + at * bytes, size_t(bytes));
    }
    return out;
}

HostTensor convert_weight(const HostTensor& stored, smla_dtype dtype) {
    if (stored.view.dtype == dtype) return stored;
    HostTensor out = allocate_like(stored.view, dtype);
    if (dtype == SMLA_F64 || stored.view.dtype == SMLA_F64) convert_all<double>(stored.view, out.view);
    else convert_all<float>(stored.view, out.view);
    return out;
}

int64_t first_not_finite(const Tensor& values) {
    const int64_t count = element_count(values);
    switch (values.dtype) {
        case SMLA_F64: return first_with_full_exponent<uint64_t, 11, 52>(values.data, count);
        case SMLA_F32: return first_with_full_exponent<uint32_t, 8, 23>(values.data, count);
        case SMLA_BF16: return first_with_full_exponent<uint16_t, 8, 7>(values.data, count);
        default: fail(SMLA_INTERNAL, "first_not_finite", dtype_name(values.dtype), "f64, f32 or bf16");
    }
}

BlockSize scale_shape(const Tensor& codes, BlockSize block) {
    return {ceil_div(codes.shape[0], block.rows), ceil_div(codes.shape[1], block.columns)};
}

HostTensor dequantise(const Tensor& codes, const Tensor& scale, BlockSize block, smla_dtype dtype) {
    HostTensor out = allocate_like(codes, dtype);
    if (dtype == SMLA_F64) dequantise_rows<double>(codes, scale, block, out.view);
    else dequantise_rows<float>(codes, scale, block, out.view);
    return out;
}

}  // namespace smla
