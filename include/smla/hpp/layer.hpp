// smla/hpp/layer.hpp: attention layers of a checkpoint, and sessions that bring their caches. What each call
// takes and refuses stands at its C function in smla/layer.h; wrong arguments throw smla::Error.
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
    // Layer number `layer` of a folder, or of a .safetensors file with options.config. One error lists every
    // missing or misshapen tensor.
    Layer(const Context& context, const std::string& checkpoint, int32_t layer,
          smla_layer_args options = {}) {
        options.checkpoint = checkpoint.c_str();
        options.layer = layer;
        create(context, options);
    }

    // The same of weights in memory. `config`: text of a config.json. Dense tensors of the dtype wanted are
    // borrowed: their memory must stay as long as the layer and its sessions. With options.weights =
    // SMLA_WEIGHTS_AS_STORED, bf16 matrices are wanted as they are.
    static Layer from_tensors(const Context& context, const std::string& config,
                              std::span<const smla_named_tensor> tensors, int32_t layer,
                              smla_layer_args options = {}) {
        if (tensors.empty())
            throw Error(SMLA_INVALID_ARGUMENT, "tensors", "none", "the weights of the layer");
        options.config_json = config.c_str();
        options.tensors = tensors.data();
        options.tensor_count = int32_t(tensors.size());
        options.layer = layer;
        Layer out;
        out.create(context, options);
        return out;
    }
    Layer(Layer&&) noexcept = default;
    Layer& operator=(Layer&&) noexcept = default;

    smla_layer_info info() const {
        smla_layer_info out{};
        out.struct_size = sizeof out;
        check(smla_layer_get_info(get(), &out));
        return out;
    }

    // One step over the caller's caches and plan; the workspace grows if it must.
    void forward(smla_layer_step step, Workspace& workspace, smla_stream stream = nullptr) const {
        workspace.reserve(workspace_size(step, workspace.budget()), stream);
        forward(step, workspace.get(), workspace.budget(), stream);
    }
    // The same in at least workspace_size(step, stage_budget) bytes.
    void forward(smla_layer_step step, smla_workspace workspace, size_t stage_budget = 0,
                 smla_stream stream = nullptr) const {
        step = detail::sized(step);
        check(smla_layer_forward(get(), &step, stage_budget, workspace, stream));
    }
    // Bytes; data pointers of the step may be null.
    size_t workspace_size(smla_layer_step step, size_t stage_budget = 0) const {
        step = detail::sized(step);
        size_t bytes = 0;
        check(smla_layer_workspace_size(get(), &step, stage_budget, &bytes));
        return bytes;
    }

    smla_layer* get() const { return handle_.get(); }
    const std::shared_ptr<smla_layer>& shared() const { return handle_; }

private:
    Layer() = default;
    void create(const Context& context, smla_layer_args args) {
        args = detail::sized(args);
        smla_layer* raw = nullptr;
        check(smla_layer_create(context.get(), &args, &raw));
        handle_.reset(raw, [alive = context.shared()](smla_layer* opened) { smla_layer_destroy(opened); });
    }

    std::shared_ptr<smla_layer> handle_;
};

// A layer with caches for a number of requests. Serves one call at a time; a concurrent second call throws.
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

    // Selection of the last step, if it had none forced: [T,k], -1 after the last; empty without an indexer.
    // Valid until the next step.
    View<const int32_t> topk() const {
        smla_tensor out{};
        check(smla_session_topk(get(), &out));
        return View<const int32_t>("topk", out);
    }
    // Tokens that a request holds.
    int32_t length(int32_t request = 0) const {
        int32_t tokens = 0;
        check(smla_session_length(get(), request, &tokens));
        return tokens;
    }
    // Forgets all tokens of a request; its pages serve others.
    void end_request(int32_t request = 0) { check(smla_session_end_request(get(), request)); }
    // Forgets all but the first `tokens` tokens of a request, as if the others had never been.
    void truncate(int32_t tokens, int32_t request = 0) {
        check(smla_session_truncate(get(), request, tokens));
    }
    // `target` holds what `source` holds, in pages of its own.
    void copy_request(int32_t source, int32_t target) {
        check(smla_session_copy_request(get(), source, target));
    }
    // Request i holds what request sources[i] held before.
    void reorder(std::span<const int32_t> sources) {
        check(smla_session_reorder(get(), sources.data(), int32_t(sources.size())));
    }
    // Another session that holds the same requests. Fields that are 0 are taken from this one.
    Session clone(smla_session_args args = {}) const {
        args = detail::sized(args);
        smla_session* raw = nullptr;
        check(smla_session_clone(get(), &args, &raw));
        Session out;
        out.handle_ = {raw, handle_.get_deleter()};
        return out;
    }
    // Other maxima for the same requests, to grow beyond max_tokens. Fields that are 0 stay as they are.
    void resize(smla_session_args args) {
        args = detail::sized(args);
        check(smla_session_resize(get(), &args));
    }
    // What it was made with, defaults filled in.
    smla_session_args args() const {
        smla_session_args out{};
        out.struct_size = sizeof out;
        check(smla_session_get_args(get(), &out));
        return out;
    }
    size_t cache_bytes() const { return bytes().first; }
    size_t workspace_bytes() const { return bytes().second; }

    smla_session* get() const { return handle_.get(); }

private:
    Session() = default;
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
