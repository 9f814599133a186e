// smla/hpp/layer.hpp: attention layers of a checkpoint, and sessions that own their caches. smla/layer.h
// documents the arguments of each call; invalid arguments throw smla::Error.
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

// An attention layer, which keeps its context alive.
class Layer {
public:
    // Reads layer number `layer` of a folder, or of a .safetensors file with options.config. One error lists
    // every missing or misshapen tensor.
    Layer(const Context& context, const std::string& checkpoint, int32_t layer,
          smla_layer_args options = {}) {
        options.checkpoint = checkpoint.c_str();
        options.layer = layer;
        create(context, options);
    }

    // Creates a layer from weights in memory. `config` is the text of a config.json. Dense tensors of the
    // required dtype are borrowed: their memory must stay valid as long as the layer and its sessions. With
    // options.weights = SMLA_WEIGHTS_AS_STORED, bf16 matrices keep their dtype.
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

    // Runs one step with the caller's caches and plan. The workspace grows if it is too small.
    void forward(smla_layer_step step, Workspace& workspace, smla_stream stream = nullptr) const {
        workspace.reserve(workspace_size(step, workspace.budget()), stream);
        forward(step, workspace.get(), workspace.budget(), stream);
    }
    // Runs one step in a workspace of at least workspace_size(step, stage_budget) bytes.
    void forward(smla_layer_step step, smla_workspace workspace, size_t stage_budget = 0,
                 smla_stream stream = nullptr) const {
        step = detail::sized(step);
        check(smla_layer_forward(get(), &step, stage_budget, workspace, stream));
    }
    // Returns the workspace bytes of a step; data pointers of the step may be null.
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

// A layer with caches for several requests. A session serves one call at a time; a concurrent call throws.
class Session {
public:
    explicit Session(const Layer& layer, smla_session_args args = {}) {
        args = detail::sized(args);
        smla_session* raw = nullptr;
        check(smla_session_create(layer.get(), &args, &raw));
        handle_ = {raw, Destroy{layer.shared()}};
    }

    // Appends tokens to one request: hidden and out are [T,X].
    void forward(const smla_tensor& hidden, const smla_tensor& out, int32_t request = 0) {
        const smla_step_request one{request, hidden.ndim ? int32_t(hidden.shape[0]) : 0};
        forward(std::span(&one, 1), hidden, out);
    }
    // Appends tokens to several requests, one request after the other in hidden and out.
    void forward(std::span<const smla_step_request> requests, const smla_tensor& hidden,
                 const smla_tensor& out) {
        smla_session_step step{};
        step.requests = requests.data();
        step.request_count = int32_t(requests.size());
        step.hidden = hidden;
        step.out = out;
        forward(step);
    }
    // Runs a step with any optional argument, such as RoPE positions or a forced selection.
    void forward(smla_session_step step) {
        step = detail::sized(step);
        check(smla_session_forward(get(), &step));
    }

    // Returns the selection of the last step, if it was not forced: [T,k], -1 after the last; empty without
    // an indexer. Valid until the next step.
    View<const int32_t> topk() const {
        smla_tensor out{};
        check(smla_session_topk(get(), &out));
        return View<const int32_t>("topk", out);
    }
    // Returns the number of tokens of a request.
    int32_t length(int32_t request = 0) const {
        int32_t tokens = 0;
        check(smla_session_length(get(), request, &tokens));
        return tokens;
    }
    // Removes all tokens of a request and makes its pages available to other requests.
    void end_request(int32_t request = 0) { check(smla_session_end_request(get(), request)); }
    // Removes all but the first `tokens` tokens of a request, as if the others had never been added.
    void truncate(int32_t tokens, int32_t request = 0) {
        check(smla_session_truncate(get(), request, tokens));
    }
    // Replaces the tokens of `target` by the tokens of `source`, in separate pages.
    void copy_request(int32_t source, int32_t target) {
        check(smla_session_copy_request(get(), source, target));
    }
    // Gives request i the tokens that request sources[i] had.
    void reorder(std::span<const int32_t> sources) {
        check(smla_session_reorder(get(), sources.data(), int32_t(sources.size())));
    }
    // Creates another session with the same requests. Fields that are 0 are taken from this session.
    Session clone(smla_session_args args = {}) const {
        args = detail::sized(args);
        smla_session* raw = nullptr;
        check(smla_session_clone(get(), &args, &raw));
        Session out;
        out.handle_ = {raw, handle_.get_deleter()};
        return out;
    }
    // Changes the maxima, for example to exceed max_tokens. Fields that are 0 keep their values.
    void resize(smla_session_args args) {
        args = detail::sized(args);
        check(smla_session_resize(get(), &args));
    }
    // Returns the arguments of the session, including defaults.
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
