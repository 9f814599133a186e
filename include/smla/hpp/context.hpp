// smla/hpp/context.hpp: contexts of a CPU or a GPU, workspaces and stage calls.
#ifndef SMLA_HPP_CONTEXT_HPP
#define SMLA_HPP_CONTEXT_HPP

#include <smla/context.h>
#include <smla/stages.h>
#include <smla/hpp/error.hpp>
#include <smla/hpp/memory.hpp>
#include <smla/hpp/stages.hpp>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace smla {
inline namespace v0 {

// Scratch memory on a context's device that grows to the size that calls need. A workspace serves one call at
// a time, on a GPU one stream. Stages that can work in pieces use at most `budget` bytes, if not 0.
class Workspace {
public:
    explicit Workspace(std::shared_ptr<smla_context> context, size_t budget = 0)
        : context_(std::move(context)), budget_(budget) {}

    // Makes the workspace at least `bytes` large. Growing changes the address, keeps the error word and waits
    // for the stream, so it fails in a capture: reserve the memory of captured calls before the capture.
    void reserve(size_t bytes, smla_stream stream = nullptr) {
        bytes = (bytes < header ? header : bytes + alignment - 1) / alignment * alignment;
        if (bytes <= memory_.bytes()) return;
        check(smla_upload(context_.get(), nullptr, nullptr, 0, stream));  // fails in a capture
        Buffer grown(context_, bytes);
        check(smla_workspace_init(context_.get(), {grown.data(), bytes}, stream));
        if (memory_.bytes()) {
            char kept[header];
            memory_.download(kept, header, stream);
            grown.upload(kept, header, stream);
        }
        memory_ = std::move(grown);
    }

    // Zeroes the counters, which a call that failed after its start may have left nonzero. Calls that return
    // INVALID_ARGUMENT or UNSUPPORTED start no work.
    void reset(smla_stream stream = nullptr) {
        if (memory_.bytes()) check(smla_workspace_init(context_.get(), get(), stream));
    }

    smla_workspace get() const { return {memory_.data(), memory_.bytes()}; }
    size_t bytes() const { return memory_.bytes(); }
    size_t budget() const { return budget_; }

private:
    static constexpr size_t alignment = 64, header = 4096;

    std::shared_ptr<smla_context> context_;
    size_t budget_;
    Buffer memory_;
};

// The engine that runs calls, and its threads. Any thread may call a context.
//
// Every stage is a member with three forms:
//   context.attend(args);                     in the context's own workspace; such calls run one at a time,
//                                             on a GPU in the default stream
//   context.attend(args, workspace, stream);  in the caller's smla::Workspace, which grows if it is too small
//   context.attend(args, raw, stream);        in the caller's memory, a smla_workspace of at least
//                                             context.workspace_size<SMLA_STAGE_ATTEND>(args) bytes
class Context {
public:
    explicit Context(smla_context_args args = {}) {
        args = detail::sized(args);
        if (args.version == 0) args.version = SMLA_VERSION;
        smla_context* raw = nullptr;
        check(smla_context_create(&args, &raw));
        handle_.reset(raw, smla_context_destroy);
        check(smla_context_device(raw, &device_type_, &device_index_));
        own_ = std::make_unique<Own>(workspace());
    }
    Context(Context&&) noexcept = default;
    Context& operator=(Context&&) noexcept = default;

    smla_context* get() const { return handle_.get(); }
    // Objects that are created from a context use this handle to keep the context alive.
    const std::shared_ptr<smla_context>& shared() const { return handle_; }
    std::string description() const { return smla_context_description(get()); }
    Workspace workspace(size_t budget = 0) const { return Workspace(handle_, budget); }

    // Device of the context. Tensors, caches and workspaces of its calls are on this device.
    smla_device_type device_type() const { return device_type_; }
    int32_t device_index() const { return device_index_; }

    // Memory on the context's device with undefined contents.
    Buffer buffer(size_t bytes) const { return Buffer(handle_, bytes); }
    Tensor tensor(smla_dtype dtype, Shape shape) const { return Tensor(handle_, dtype, shape); }
    template <Element T>
    Tensor tensor(Shape shape) const {
        return Tensor(handle_, dtype_of<T>, shape);
    }
    Cache cache(smla_format format, int64_t pages, int32_t page_tokens, int32_t width = 0) const {
        return Cache(handle_, format, pages, page_tokens, width);
    }
    // Copies a vector, array or span on the host to a tensor. Without a shape, the tensor is [size].
    template <class Memory>
    Tensor copy_of(const Memory& values, Shape shape) const {
        Tensor out(handle_, dtype_of<std::remove_cvref_t<decltype(*std::data(values))>>, shape);
        out.upload(values);
        return out;
    }
    template <class Memory>
    Tensor copy_of(const Memory& values) const {
        return copy_of(values, {int64_t(std::size(values))});
    }
    // Returns a dense tensor of memory that the caller owns, on the context's device.
    smla_tensor view(const void* data, smla_dtype dtype, Shape shape) const {
        smla_tensor out = smla::tensor(data, dtype, shape);
        out.device_type = device_type_;
        out.device_index = device_index_;
        return out;
    }

    template <smla_stage S>
    size_t workspace_size(StageArgs<S> args, size_t budget = 0) const {
        args = detail::sized(args);
        size_t bytes = 0;
        check(smla_workspace_size(get(), S, &args, budget, &bytes));
        return bytes;
    }

    // Call before a capture; see smla_prepare.
    template <smla_stage S>
    void prepare(StageArgs<S> args) const {
        args = detail::sized(args);
        check(smla_prepare(get(), S, &args));
    }

    // Returns JSON: all kernels of the stage in order of preference, why each does not support these
    // arguments, and the kernel that runs.
    template <smla_stage S>
    std::string explain(StageArgs<S> args) const {
        args = detail::sized(args);
        size_t bytes = 0;
        check(smla_explain_stage(get(), S, &args, nullptr, &bytes));
        std::string text(bytes, '\0');
        check(smla_explain_stage(get(), S, &args, text.data(), &bytes));
        text.resize(bytes - 1);
        return text;
    }

    // Checks the contents of index tensors (rows, lengths, tables, slots). Throws SMLA_DATA_ERROR for the
    // first invalid value.
    template <smla_stage S>
    void check_data(StageArgs<S> args) const {
        args = detail::sized(args);
        check(smla_check_stage(get(), S, &args));
    }

    // Returns and clears the first invalid value in the error word of a workspace (check_indices).
    std::optional<smla_error_word> read_error(smla_workspace workspace, smla_stream stream = nullptr) const {
        smla_error_word word{};
        check(smla_read_error(get(), workspace, stream, &word));
        if (word.kind == SMLA_BAD_NONE) return std::nullopt;
        return word;
    }
    std::optional<smla_error_word> read_error(const Workspace& workspace,
                                              smla_stream stream = nullptr) const {
        return workspace.bytes() ? read_error(workspace.get(), stream) : std::nullopt;
    }
    std::optional<smla_error_word> read_error() const {
        Own& own = own_or_throw();
        const std::lock_guard lock(own.turn);
        return read_error(own.workspace);
    }

#define SMLA_HPP_CALL(name, stage, args_type)                                                    \
    void name(const args_type& args) const { run_own<stage>(smla_##name, args); }                \
    void name(const args_type& args, Workspace& workspace, smla_stream stream = nullptr) const { \
        run<stage>(smla_##name, args, workspace, stream);                                        \
    }                                                                                            \
    void name(args_type args, smla_workspace workspace, smla_stream stream = nullptr) const {    \
        args = detail::sized(args);                                                              \
        check(smla_##name(get(), &args, workspace, stream));                                     \
    }
    SMLA_HPP_STAGES(SMLA_HPP_CALL)
#undef SMLA_HPP_CALL

private:
    struct Own {
        explicit Own(Workspace given) : workspace(std::move(given)) {}
        std::mutex turn;
        Workspace workspace;
    };

    Own& own_or_throw() const {
        if (!own_) throw Error(SMLA_INVALID_ARGUMENT, "context", "moved from", "a context");
        return *own_;
    }

    template <smla_stage S, class Call>
    void run(Call call, StageArgs<S> args, Workspace& workspace, smla_stream stream) const {
        args = detail::sized(args);
        workspace.reserve(workspace_size<S>(args, workspace.budget()), stream);
        const smla_status status = call(get(), &args, workspace.get(), stream);
        if (status == SMLA_OK) return;
        Error error = Error::last(status);
        if (status != SMLA_INVALID_ARGUMENT && status != SMLA_UNSUPPORTED) workspace.reset(stream);
        throw error;
    }
    template <smla_stage S, class Call>
    void run_own(Call call, const StageArgs<S>& args) const {
        Own& own = own_or_throw();
        const std::lock_guard lock(own.turn);
        run<S>(call, args, own.workspace, nullptr);
    }

    std::shared_ptr<smla_context> handle_;
    smla_device_type device_type_ = SMLA_CPU;
    int32_t device_index_ = 0;
    std::unique_ptr<Own> own_;
};

// The engine `cpu` on this machine.
class Cpu : public Context {
public:
    explicit Cpu(smla_context_args args = {}) : Context(on(args)) {}

private:
    static smla_context_args on(smla_context_args args) {
        args.engine = SMLA_ENGINE_CPU;
        return args;
    }
};

// The engine `cuda` on one GPU. The constructor throws if there is no such GPU.
class Gpu : public Context {
public:
    explicit Gpu(int32_t index = 0, smla_context_args args = {}) : Context(on(index, args)) {}

private:
    static smla_context_args on(int32_t index, smla_context_args args) {
        args.engine = SMLA_ENGINE_CUDA;
        args.device_index = index;
        return args;
    }
};

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_CONTEXT_HPP
