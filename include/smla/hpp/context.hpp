// smla/hpp/context.hpp: contexts, workspaces and the stage calls.
#ifndef SMLA_HPP_CONTEXT_HPP
#define SMLA_HPP_CONTEXT_HPP

#include <smla/context.h>
#include <smla/stages.h>
#include <smla/hpp/error.hpp>
#include <smla/hpp/stages.hpp>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>

namespace smla {
inline namespace v0 {

// Scratch memory of the host that grows to what calls need. Serves one call at a time. With a budget, stages
// that can loop within it do. Calls on a GPU need memory of the GPU, which this header does not allocate:
// there a Workspace refuses to grow, and calls take the caller's smla_workspace and stream.
class Workspace {
public:
    Workspace(std::shared_ptr<smla_context> context, size_t budget, smla_engine engine = SMLA_ENGINE_CPU)
        : context_(std::move(context)), budget_(budget), engine_(engine) {}
    Workspace(Workspace&& other) noexcept
        : context_(std::move(other.context_)),
          budget_(other.budget_),
          engine_(other.engine_),
          memory_(std::move(other.memory_)),
          bytes_(std::exchange(other.bytes_, 0)) {}
    Workspace& operator=(Workspace&& other) noexcept {
        context_ = std::move(other.context_);
        budget_ = other.budget_;
        engine_ = other.engine_;
        memory_ = std::move(other.memory_);
        bytes_ = std::exchange(other.bytes_, 0);
        return *this;
    }

    // At least this many bytes from now on. Addresses change when it grows; the error word does not.
    void reserve(size_t bytes) {
        bytes = (bytes < header ? header : bytes + alignment - 1) / alignment * alignment;
        if (bytes <= bytes_) return;
        if (engine_ == SMLA_ENGINE_CUDA_MMA)
            throw Error(SMLA_UNSUPPORTED, "workspace", "smla::Workspace, memory of the host",
                        "for a context of cuda_mma a smla_workspace in the GPU's memory");
        const size_t huge = (bytes + huge_page - 1) / huge_page * huge_page;
        if (bytes >= huge_page / 2 && (budget_ == 0 || huge <= budget_)) bytes = huge;
        Memory grown(
            static_cast<char*>(std::aligned_alloc(bytes % huge_page ? alignment : huge_page, bytes)));
        if (!grown) throw std::bad_alloc();
        check(smla_workspace_init(context_.get(), {grown.get(), bytes}, nullptr));
        if (memory_) std::memcpy(grown.get(), memory_.get(), header);
        memory_ = std::move(grown);
        bytes_ = bytes;
    }

    // The counters of a call that broke off may be left as they were (INVALID_ARGUMENT and UNSUPPORTED start
    // nothing).
    void reset() {
        if (memory_) check(smla_workspace_init(context_.get(), get(), nullptr));
    }

    smla_workspace get() const { return {memory_.get(), bytes_}; }
    size_t bytes() const { return bytes_; }
    size_t budget() const { return budget_; }

private:
    static constexpr size_t alignment = 64, header = 4096, huge_page = size_t(2) << 20;
    struct Free {
        void operator()(char* memory) const { std::free(memory); }
    };
    using Memory = std::unique_ptr<char, Free>;

    std::shared_ptr<smla_context> context_;
    size_t budget_;
    smla_engine engine_;
    Memory memory_;
    size_t bytes_ = 0;
};

// The engine that runs calls, and its threads. Any thread may call.
//
// Every stage is a member with three forms:
//   context.attend(args);                     a workspace of the context's own: such calls take turns
//   context.attend(args, workspace);          the caller's smla::Workspace, grown where it is too small
//   context.attend(args, raw, stream);        the caller's memory, the only form for a context of cuda_mma
//   (context.workspace_size<SMLA_STAGE_ATTEND>(args)):
//                                             nothing is allocated or asked for
class Context {
public:
    explicit Context(smla_context_args args = {}) {
        args = detail::sized(args);
        if (args.version == 0) args.version = SMLA_VERSION;
        smla_context* raw = nullptr;
        check(smla_context_create(&args, &raw));
        handle_.reset(raw, smla_context_destroy);
        engine_ = args.engine;
        own_ = std::make_unique<Own>(workspace());
    }
    Context(Context&&) noexcept = default;
    Context& operator=(Context&&) noexcept = default;

    smla_context* get() const { return handle_.get(); }
    // What stands on a context keeps it alive by it.
    const std::shared_ptr<smla_context>& shared() const { return handle_; }
    std::string description() const { return smla_context_description(get()); }
    Workspace workspace(size_t budget = 0) const { return Workspace(handle_, budget, engine_); }

    template <smla_stage S>
    size_t workspace_size(StageArgs<S> args, size_t budget = 0) const {
        args = detail::sized(args);
        size_t bytes = 0;
        check(smla_workspace_size(get(), S, &args, budget, &bytes));
        return bytes;
    }

    // Before a capture: see smla_prepare.
    template <smla_stage S>
    void prepare(StageArgs<S> args) const {
        args = detail::sized(args);
        check(smla_prepare(get(), S, &args));
    }

    // JSON: every kernel of the stage in order of preference, why each will not run these arguments, which
    // one does.
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

    // Scans what a hot call takes on trust (rows, lengths, tables, slots): throws SMLA_DATA_ERROR at the
    // first bad value.
    template <smla_stage S>
    void check_data(StageArgs<S> args) const {
        args = detail::sized(args);
        check(smla_check_stage(get(), S, &args));
    }

    // The first bad value that calls in this workspace met, and forgets it. Contexts with check_indices.
    std::optional<smla_error_word> read_error(smla_workspace workspace, smla_stream stream = nullptr) const {
        smla_error_word word{};
        check(smla_read_error(get(), workspace, stream, &word));
        if (word.kind == SMLA_BAD_NONE) return std::nullopt;
        return word;
    }
    std::optional<smla_error_word> read_error(const Workspace& workspace) const {
        return workspace.bytes() ? read_error(workspace.get()) : std::nullopt;
    }
    std::optional<smla_error_word> read_error() const {
        Own& own = lock_target();
        const std::lock_guard lock(own.turn);
        return read_error(own.workspace);
    }

#define SMLA_HPP_CALL(name, stage, args_type)                                                 \
    void name(const args_type& args) const { run_own<stage>(smla_##name, args); }             \
    void name(const args_type& args, Workspace& workspace) const {                            \
        run<stage>(smla_##name, args, workspace);                                             \
    }                                                                                         \
    void name(args_type args, smla_workspace workspace, smla_stream stream = nullptr) const { \
        args = detail::sized(args);                                                           \
        check(smla_##name(get(), &args, workspace, stream));                                  \
    }
    SMLA_HPP_STAGES(SMLA_HPP_CALL)
#undef SMLA_HPP_CALL

private:
    struct Own {
        explicit Own(Workspace given) : workspace(std::move(given)) {}
        std::mutex turn;
        Workspace workspace;
    };

    Own& lock_target() const {
        if (!own_) throw Error(SMLA_INVALID_ARGUMENT, "context", "moved from", "a context");
        return *own_;
    }

    template <smla_stage S, class Call>
    void run(Call call, StageArgs<S> args, Workspace& workspace) const {
        args = detail::sized(args);
        workspace.reserve(workspace_size<S>(args, workspace.budget()));
        const smla_status status = call(get(), &args, workspace.get(), nullptr);
        if (status == SMLA_OK) return;
        Error error = Error::last(status);
        if (status != SMLA_INVALID_ARGUMENT && status != SMLA_UNSUPPORTED) workspace.reset();
        throw error;
    }
    template <smla_stage S, class Call>
    void run_own(Call call, const StageArgs<S>& args) const {
        Own& own = lock_target();
        const std::lock_guard lock(own.turn);
        run<S>(call, args, own.workspace);
    }

    std::shared_ptr<smla_context> handle_;
    smla_engine engine_ = SMLA_ENGINE_AUTO;
    std::unique_ptr<Own> own_;
};

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_CONTEXT_HPP
