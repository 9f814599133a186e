// smla/hpp/layer.hpp: attention layers of a checkpoint, and sessions that bring their caches.
#ifndef SMLA_HPP_LAYER_HPP
#define SMLA_HPP_LAYER_HPP

#include <smla/layer.h>
#include <smla/hpp/context.hpp>
#include <smla/hpp/error.hpp>
#include <smla/hpp/tensor.hpp>

#include <memory>
#include <span>
#include <string>

namespace smla {
inline namespace v0 {

// A layer keeps its context alive, a session its layer.
class Layer {
public:
    // `checkpoint`: a folder, or a .safetensors file with options.config. Throws one error that lists every
    // missing or misshapen tensor.
    Layer(const Context& context, const std::string& checkpoint, int32_t layer,
          smla_layer_args options = {}) {
        options = detail::sized(options);
        options.checkpoint = checkpoint.c_str();
        options.layer = layer;
        smla_layer* raw = nullptr;
        check(smla_layer_open(context.get(), &options, &raw));
        handle_.reset(raw, [alive = context.shared()](smla_layer* opened) { smla_layer_close(opened); });
    }
    Layer(Layer&&) noexcept = default;
    Layer& operator=(Layer&&) noexcept = default;

    smla_layer_info info() const {
        smla_layer_info out{};
        out.struct_size = sizeof out;
        check(smla_layer_get_info(get(), &out));
        return out;
    }

    // One step over the caller's caches and plan.
    void forward(smla_layer_step step, Workspace& workspace) const {
        workspace.reserve(workspace_size(step, workspace.budget()));
        forward(step, workspace.get(), workspace.budget());
    }
    void forward(smla_layer_step step, smla_workspace workspace, size_t stage_budget = 0,
                 smla_stream stream = nullptr) const {
        step = detail::sized(step);
        check(smla_layer_forward(get(), &step, stage_budget, workspace, stream));
    }
    size_t workspace_size(smla_layer_step step, size_t stage_budget = 0) const {
        step = detail::sized(step);
        size_t bytes = 0;
        check(smla_layer_workspace_size(get(), &step, stage_budget, &bytes));
        return bytes;
    }

    smla_layer* get() const { return handle_.get(); }
    const std::shared_ptr<smla_layer>& shared() const { return handle_; }

private:
    std::shared_ptr<smla_layer> handle_;
};

// A layer with caches for a number of requests. Serves one call at a time.
class Session {
public:
    explicit Session(const Layer& layer, smla_session_args args = {}) {
        args = detail::sized(args);
        smla_session* raw = nullptr;
        check(smla_session_create(layer.get(), &args, &raw));
        handle_ = {raw, Destroy{layer.shared()}};
    }

    // The next tokens of one request: hidden and out [T,X].
    void forward(const smla_tensor& hidden, const smla_tensor& out, int32_t request = 0) {
        const smla_step_request one{request, hidden.ndim ? int32_t(hidden.shape[0]) : 0};
        forward(std::span(&one, 1), hidden, out);
    }
    // The next tokens of several, one request after the other in hidden and out.
    void forward(std::span<const smla_step_request> requests, const smla_tensor& hidden,
                 const smla_tensor& out) {
        smla_session_step step{};
        step.requests = requests.data();
        step.request_count = int32_t(requests.size());
        step.hidden = hidden;
        step.out = out;
        forward(step);
    }
    // Everything that a step may have: also own RoPE positions, a forced selection.
    void forward(smla_session_step step) {
        step = detail::sized(step);
        check(smla_session_forward(get(), &step));
    }

    // Selection of the last step, [T,k], -1 after the last; empty without an indexer. Valid until the next
    // step.
    View<const int32_t> topk() const {
        smla_tensor out{};
        check(smla_session_topk(get(), &out));
        return View<const int32_t>("topk", out);
    }
    int32_t length(int32_t request = 0) const {
        int32_t tokens = 0;
        check(smla_session_length(get(), request, &tokens));
        return tokens;
    }
    void end_request(int32_t request = 0) { check(smla_session_end_request(get(), request)); }
    size_t cache_bytes() const { return bytes().first; }
    size_t workspace_bytes() const { return bytes().second; }

    smla_session* get() const { return handle_.get(); }

private:
    struct Destroy {
        std::shared_ptr<smla_layer> alive;  // in the deleter: assignment destroys the session first
        void operator()(smla_session* session) const { smla_session_destroy(session); }
    };
    std::pair<size_t, size_t> bytes() const {
        std::pair<size_t, size_t> out;
        check(smla_session_bytes(get(), &out.first, &out.second));
        return out;
    }

    std::unique_ptr<smla_session, Destroy> handle_;
};

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_LAYER_HPP
