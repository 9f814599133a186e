// smla/hpp/tensor.hpp: tensors and caches of C++ memory on the host, and typed views of the library's
// results. For memory on other devices, see smla/hpp/memory.hpp.
#ifndef SMLA_HPP_TENSOR_HPP
#define SMLA_HPP_TENSOR_HPP

#include <smla/formats.h>
#include <smla/types.h>
#include <smla/hpp/error.hpp>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <type_traits>

namespace smla {
inline namespace v0 {

using Shape = std::initializer_list<int64_t>;

// The dtype of a C++ type. bf16, f16 and the 8- and 4-bit dtypes have no C++ type and must be named.
template <class T>
inline constexpr smla_dtype dtype_of = 0;
template <>
inline constexpr smla_dtype dtype_of<double> = SMLA_F64;
template <>
inline constexpr smla_dtype dtype_of<float> = SMLA_F32;
template <>
inline constexpr smla_dtype dtype_of<uint8_t> = SMLA_U8;
template <>
inline constexpr smla_dtype dtype_of<int32_t> = SMLA_I32;
template <>
inline constexpr smla_dtype dtype_of<int64_t> = SMLA_I64;

template <class T>
concept Element = dtype_of<std::remove_cv_t<T>>
!= 0;

namespace detail {
inline std::string name_of_dtype(smla_dtype dtype) {
    constexpr const char* names[] = {"f64", "f32", "bf16", "f16", "e4m3", "e2m1", "e8m0", "u8", "i32", "i64"};
    return dtype >= SMLA_F64 && dtype <= SMLA_I64 ? names[dtype - SMLA_F64]
                                                  : "unknown dtype " + std::to_string(dtype);
}
inline std::string name_of_device(smla_device_type type) {
    return type == SMLA_CPU ? "cpu" : type == SMLA_CUDA ? "cuda" : "device type " + std::to_string(type);
}
}  // namespace detail

// Memory that outlives the expression in which it occurs: a variable, or a view of one.
template <class Memory>
concept Borrowed =
    std::is_lvalue_reference_v<Memory> || std::ranges::enable_borrowed_range<std::remove_cvref_t<Memory>>;

// Returns a dense tensor of memory on the host. Inputs may be const, because the library only writes to
// outputs.
inline smla_tensor tensor(const void* data, smla_dtype dtype, Shape shape) {
    if (shape.size() > SMLA_MAX_NDIM)
        throw Error(SMLA_INVALID_ARGUMENT, "tensor.shape", std::to_string(shape.size()) + " dimensions",
                    "at most " + std::to_string(SMLA_MAX_NDIM));
    int64_t extents[SMLA_MAX_NDIM] = {};
    std::copy(shape.begin(), shape.end(), extents);
    constexpr int64_t most = int64_t(1) << 48;  // elements of one tensor
    int64_t elements = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
        const int64_t extent = extents[i];
        if (extent < 0 || (extent > 0 && elements > most / extent))
            throw Error(SMLA_INVALID_ARGUMENT, "tensor.shape[" + std::to_string(i) + "]",
                        std::to_string(extent), extent < 0 ? "0 or more" : "at most 2^48 elements in all");
        elements *= extent;
    }
    return smla_dense(const_cast<void*>(data), dtype, int32_t(shape.size()), extents[0], extents[1],
                      extents[2], extents[3]);
}

template <Element T>
smla_tensor tensor(T* data, Shape shape) {
    return tensor(static_cast<const void*>(data), dtype_of<std::remove_cv_t<T>>, shape);
}

// Returns a tensor of a vector, array or span with as many elements as the shape; without a shape, [size].
template <class Memory>
requires Borrowed<Memory&&> && Element<std::remove_pointer_t<decltype(std::data(std::declval<Memory&>()))>>
    smla_tensor tensor(Memory&& memory, Shape shape) {
    const smla_tensor out = tensor(std::data(memory), shape);
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    if (elements != int64_t(std::size(memory)))
        throw Error(SMLA_INVALID_ARGUMENT, "tensor.shape", std::to_string(elements) + " elements",
                    std::to_string(std::size(memory)) + ", those of the memory");
    return out;
}
template <class Memory>
requires Borrowed<Memory&&> && Element<std::remove_pointer_t<decltype(std::data(std::declval<Memory&>()))>>
    smla_tensor tensor(Memory&& memory) {
    return tensor(std::data(memory), {int64_t(std::size(memory))});
}

// Returns a packed cache of memory on the host. width 0 means the format's width; row_* and state_* formats
// require one.
inline smla_cache cache(const void* data, smla_format format, int64_t pages, int32_t page_tokens,
                        int32_t width = 0) {
    smla_cache out{};
    out.data = const_cast<void*>(data);
    out.format = format;
    out.device_type = SMLA_CPU;
    out.width = width;
    out.page_tokens = page_tokens;
    out.pages = pages;
    return out;
}

// Describes a format: names, sizes, page rule, scales. width 0 means the format's width.
inline smla_format_info format_info(smla_format format, int32_t width = 0) {
    smla_format_info out{};
    out.struct_size = sizeof out;
    check(smla_format_get_info(format, width, &out));
    return out;
}
inline smla_format format_by_name(const char* name) {
    smla_format out = SMLA_FORMAT_NONE;
    check(smla_format_by_name(name, &out));
    return out;
}

// Returns the bytes from the start to the end of a tensor or cache; ignores its data pointer.
inline size_t tensor_bytes(const smla_tensor& tensor) {
    size_t bytes = 0;
    check(smla_tensor_bytes(&tensor, &bytes));
    return bytes;
}
inline size_t cache_bytes(const smla_cache& cache) {
    size_t bytes = 0;
    check(smla_cache_bytes(&cache, &bytes));
    return bytes;
}

// A dense [n] or [n,columns] tensor on the host as C++ values.
template <Element T>
class View {
public:
    View() = default;  // an absent tensor is empty
    View(const char* name, const smla_tensor& from) {
        if (from.ndim == 0) return;
        constexpr smla_dtype wanted = dtype_of<std::remove_cv_t<T>>;
        require(name, "dtype", from.dtype == wanted, detail::name_of_dtype(from.dtype),
                detail::name_of_dtype(wanted));
        require(name, "device_type", from.device_type == SMLA_CPU, detail::name_of_device(from.device_type),
                detail::name_of_device(SMLA_CPU));
        require(name, "ndim", from.ndim <= 2, from.ndim, 2);
        data_ = static_cast<T*>(from.data);
        rows_ = from.shape[0];
        columns_ = from.ndim == 2 ? from.shape[1] : 1;
        const int64_t stride = from.stride_elems[0], last = from.ndim == 2 ? from.stride_elems[1] : 1;
        require(name, "stride_elems[0]", stride == columns_ || rows_ <= 1, stride, columns_);
        require(name, "stride_elems[1]", last == 1 || columns_ <= 1, last, 1);
    }

    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    bool empty() const { return rows_ * columns_ == 0; }
    std::span<T> values() const { return {data_, size_t(rows_ * columns_)}; }
    std::span<T> row(int64_t i) const { return {data_ + i * columns_, size_t(columns_)}; }
    T& operator[](int64_t i) const { return data_[i]; }  // index into all values
    T* begin() const { return data_; }
    T* end() const { return data_ + rows_ * columns_; }

private:
    static void require(const char* name, const char* what, bool holds, std::string got, std::string wanted) {
        if (!holds) throw Error(SMLA_INVALID_ARGUMENT, std::string(name) + "." + what, got, wanted);
    }
    static void require(const char* name, const char* what, bool holds, int64_t got, int64_t wanted) {
        require(name, what, holds, std::to_string(got), std::to_string(wanted));
    }

    T* data_ = nullptr;
    int64_t rows_ = 0, columns_ = 0;
};

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_TENSOR_HPP
