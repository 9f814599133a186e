// smla/hpp/memory.hpp: memory where a context runs, and tensors and caches that own theirs. A context makes
// them: context.tensor<float>({4, 576}), context.cache(SMLA_FP8_656, pages, 64). They go into argument
// structs as they are. Each keeps its context alive; memory on a GPU must not be freed while calls still use
// it.
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

// Bytes where a context runs, freed by the destructor. Their contents are undefined at first.
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
    // Throws if it has no memory: made without a context, or moved from.
    const Buffer& checked(const char* name) const {
        if (!memory_.get_deleter().context)
            throw Error(SMLA_INVALID_ARGUMENT, name, "moved from", "one that has its memory");
        return *this;
    }

    // From the host, in the order of the stream; `from` may be reused at once.
    void upload(const void* from, size_t bytes, smla_stream stream = nullptr) const {
        checked("buffer").require_room(bytes);
        check(smla_upload(memory_.get_deleter().context.get(), data(), from, bytes, stream));
    }
    // To the host, once the stream is done; waits for that.
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

// A dense tensor and its memory. Values come and go as the C++ type of its dtype; codes of bf16 and f16 as
// uint16_t, of e4m3, e2m1 (two each) and e8m0 as uint8_t.
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

    // All of its elements, from a vector, array or span of the host.
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
    // All of its elements, once the stream is done.
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

// A packed cache and its memory.
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
