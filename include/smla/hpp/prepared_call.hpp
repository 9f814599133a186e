// smla/hpp/prepared_call.hpp: calls that are prepared once and run with varying addresses.
#ifndef SMLA_HPP_PREPARED_CALL_HPP
#define SMLA_HPP_PREPARED_CALL_HPP

#include <smla/prepared_call.h>
#include <smla/hpp/backend.hpp>
#include <smla/hpp/context.hpp>
#include <smla/hpp/error.hpp>

#include <initializer_list>
#include <memory>

namespace smla {
inline namespace v0 {

// A stage call or the forward call of a backend, prepared for fixed shapes; see smla/prepared_call.h. A Call
// keeps its context or backend alive, but not the metadata of a forward call. Several threads may run a Call
// concurrently; each run needs a separate workspace.
//
//   const auto step = smla::Call::of<SMLA_STAGE_ATTEND>(
//       context, args, {offsetof(smla_attend_args, q.data), offsetof(smla_attend_args, out.data)});
//   step.run({q, out}, workspace);
class Call {
public:
    // Prepares a call of stage S. `moving` lists offsets in the arguments, as in smla_call_create.
    template <smla_stage S>
    static Call of(const Context& context, StageArgs<S> args, std::initializer_list<size_t> moving,
                   size_t budget = 0) {
        args = detail::sized(args);
        smla_call* raw = nullptr;
        check(
            smla_call_create(context.get(), S, &args, moving.begin(), int32_t(moving.size()), budget, &raw));
        return Call(raw, context.shared(), moving.size());
    }
    // Prepares the forward call of a backend. `moving` lists offsets in smla_backend_forward_args.
    static Call of(const Backend& backend, smla_backend_forward_args args,
                   std::initializer_list<size_t> moving) {
        args = detail::sized(args);
        smla_call* raw = nullptr;
        check(smla_backend_call_create(backend.get(), &args, moving.begin(), int32_t(moving.size()), &raw));
        return Call(raw, backend.shared(), moving.size());
    }

    // Returns the number of bytes of workspace that a run needs at most.
    size_t bytes() const {
        size_t out = 0;
        check(smla_call_bytes(get(), &out));
        return out;
    }

    // Runs the call with one address for each element of `moving`, in that order. Grows the workspace if it
    // is too small.
    void run(std::initializer_list<const void*> addresses, Workspace& workspace,
             smla_stream stream = nullptr) const {
        workspace.reserve(bytes(), stream);
        try {
            run(addresses, workspace.get(), stream);
        } catch (const Error& error) {
            if (error.code != SMLA_INVALID_ARGUMENT && error.code != SMLA_UNSUPPORTED)
                workspace.reset(stream);
            throw;
        }
    }
    // Runs the call in a workspace that the caller has allocated.
    void run(std::initializer_list<const void*> addresses, smla_workspace workspace,
             smla_stream stream = nullptr) const {
        if (addresses.size() != count_)
            throw Error(SMLA_INVALID_ARGUMENT, "addresses", std::to_string(addresses.size()),
                        std::to_string(count_) + ", one for each of `moving`");
        check(smla_call_run(get(), addresses.begin(), workspace, stream));
    }

    smla_call* get() const { return handle_.get(); }

private:
    struct Destroy {
        std::shared_ptr<const void> alive;
        void operator()(smla_call* call) const { smla_call_destroy(call); }
    };
    Call(smla_call* raw, std::shared_ptr<const void> alive, size_t count)
        : handle_(raw, Destroy{std::move(alive)}), count_(count) {}

    std::unique_ptr<smla_call, Destroy> handle_;
    size_t count_;
};

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_PREPARED_CALL_HPP
