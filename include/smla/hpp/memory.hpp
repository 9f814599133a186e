// smla/hpp/memory.hpp: memory on a context's device, and tensors and caches that own their memory. Contexts
// create them: context.tensor<float>({4, 576}), context.cache(SMLA_FP8_656, pages, 64). Tensors and caches
// convert to the types of argument structs. Each object keeps its context alive; memory on a GPU must not be
// freed while calls use it.
#ifndef SMLA_HPP_MEMORY_HPP
#define SMLA_HPP_MEMORY_HPP

#include <smla/context.h>
#include <smla/formats.h>
#include <smla/hpp/error.hpp>
#include <smla/hpp/tensor.hpp>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace smla {
inline namespace v0 {

// Memory on a context's device, freed by the destructor. The initial contents are undefined.
class Buffer {
public:
    Buffer() = default;
    Buffer(std::shared_ptr<smla_context> context, size_t bytes) : bytes_(bytes) {
        void* memory = nullptr;
        check(smla_allocate(context.get(), bytes, &memory));
        memory_ = {memory, Release{std::move(context)}};
    }
    Buffer(Buffer&& other) noexcept
        : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        memory_ = std::move(other.memory_);
        bytes_ = std::exchange(other.bytes_, 0);
        return *this;
    }

    void* data() const { return memory_.get(); }
    size_t bytes() const { return bytes_; }
    // Throws if the buffer has no context, because it is default-constructed or moved from.
    const Buffer& checked(const char* name) const {
        if (!memory_.get_deleter().context)
            throw Error(SMLA_INVALID_ARGUMENT, name, "moved from", "one that has its memory");
        return *this;
    }

    // Copies from the host in stream order; `from` may be reused when the call returns.
    void upload(const void* from, size_t bytes, smla_stream stream = nullptr) const {
        checked("buffer").require_room(bytes);
        check(smla_upload(memory_.get_deleter().context.get(), data(), from, bytes, stream));
    }
    // Copies to the host in stream order, and waits for the copy.
    void download(void* to, size_t bytes, smla_stream stream = nullptr) const {
        checked("buffer").require_room(bytes);
        check(smla_download(memory_.get_deleter().context.get(), to, data(), bytes, stream));
    }

private:
    struct Release {
        std::shared_ptr<smla_context> context;
        void operator()(void* memory) const { smla_release(context.get(), memory); }
    };
    void require_room(size_t bytes) const {
        if (bytes > bytes_)
            throw Error(SMLA_INVALID_ARGUMENT, "bytes", std::to_string(bytes),
                        "at most " + std::to_string(bytes_) + ", those of the buffer");
    }

    std::unique_ptr<void, Release> memory_;
    size_t bytes_ = 0;
};

// A dense tensor that owns its memory. Values have the C++ type of the dtype; codes of bf16 and f16 are
// uint16_t, codes of e4m3, e2m1 (two per byte) and e8m0 are uint8_t.
class Tensor {
public:
    Tensor(std::shared_ptr<smla_context> context, smla_dtype dtype, Shape shape)
        : view_(smla::tensor(nullptr, dtype, shape)) {
        check(smla_context_device(context.get(), &view_.device_type, &view_.device_index));
        memory_ = Buffer(std::move(context), tensor_bytes(view_));
        view_.data = memory_.data();
    }

    operator const smla_tensor&() const { return get(); }
    const smla_tensor& get() const {
        memory_.checked("tensor");
        return view_;
    }
    const Buffer& memory() const { return memory_; }

    // Writes all elements from a vector, array or span on the host.
    template <class Memory>
    void upload(const Memory& values, smla_stream stream = nullptr) const {
        using T = std::remove_cvref_t<decltype(*std::data(values))>;
        memory_.checked("tensor");
        require_holds<T>();
        const size_t bytes = std::size(values) * sizeof(T);
        if (bytes != memory_.bytes())
            throw Error(SMLA_INVALID_ARGUMENT, "values", std::to_string(bytes) + " bytes",
                        std::to_string(memory_.bytes()) + ", those of the tensor");
        memory_.upload(std::data(values), bytes, stream);
    }
    // Returns all elements, after the work on the stream.
    template <class T>
    std::vector<T> download(smla_stream stream = nullptr) const {
        memory_.checked("tensor");
        require_holds<T>();
        std::vector<T> values(memory_.bytes() / sizeof(T));
        memory_.download(values.data(), memory_.bytes(), stream);
        return values;
    }

private:
    template <class T>
    void require_holds() const {
        static_assert(Element<T> || std::is_same_v<T, uint16_t>, "no dtype has this C++ type");
        const smla_dtype dtype = view_.dtype;
        const bool code16 = dtype == SMLA_BF16 || dtype == SMLA_F16;
        const bool code8 = dtype == SMLA_E4M3 || dtype == SMLA_E2M1 || dtype == SMLA_E8M0;
        if (dtype == dtype_of<T> || (code16 && std::is_same_v<T, uint16_t>) ||
            (code8 && std::is_same_v<T, uint8_t>))
            return;
        throw Error(SMLA_INVALID_ARGUMENT, "values",
                    dtype_of<T> ? detail::name_of_dtype(dtype_of<T>) : "codes of 16 bits",
                    detail::name_of_dtype(dtype) + ", the dtype of the tensor");
    }

    smla_tensor view_;
    Buffer memory_;
};

// A packed cache that owns its memory.
class Cache {
public:
    Cache(std::shared_ptr<smla_context> context, smla_format format, int64_t pages, int32_t page_tokens,
          int32_t width = 0)
        : view_(smla::cache(nullptr, format, pages, page_tokens, width)) {
        check(smla_context_device(context.get(), &view_.device_type, &view_.device_index));
        memory_ = Buffer(std::move(context), cache_bytes(view_));
        view_.data = memory_.data();
    }

    operator const smla_cache&() const { return get(); }
    const smla_cache& get() const {
        memory_.checked("cache");
        return view_;
    }
    const Buffer& memory() const { return memory_; }

    // Sets the scale of a format that has one scale per cache.
    void set_scale(float scale) {
        memory_.checked("cache");
        view_.scale = scale;
    }

private:
    smla_cache view_;
    Buffer memory_;
};

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_MEMORY_HPP
