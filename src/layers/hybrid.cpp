// DeepSeek-V4 and V4.1: one vector per token is key and value. A token attends to a local window and, by the
// layer's kind, to compressed entries (selected by an indexer, or all). Attention has sinks, and the output
// projection is grouped.
#include "layers/layer.h"

namespace smla {

namespace {

class HybridLayer final : public Layer {
public:
    HybridLayer(const Checkpoint& checkpoint, const AttentionConfig& config, int layer,
                LayerPrecision precision, Device& device)
        : Layer(config, layer, precision),
          weights_(load_hybrid_weights(checkpoint, config, layer, weight_options(precision))) {
        kind_ = config.layer_kind(layer);
        ratio_ = int32_t(config.compress_ratio(layer));
        sources_ = config.sources(layer);
        place(weights_, device);
        // An entry has the position of its first token, ratio - 1 before the token that closes it.
        before_.view = make_tensor(&tokens_before_, SMLA_I32, {1});
        tokens_before_ = ratio_ - 1;
        smla::place(before_, device);
        scale_ = config.softmax_scale();
    }

    void forward(Runner& run, const LayerStep& step) const override;
    Tensor input_norm() const override { return weights_.input_norm.view; }

private:
    Tensor project(Runner& run, const Tensor& x, const HostTensor& w) const;  // [T,1,K] -> [T,1,N]
    void norm(Runner& run, const Tensor& x, const Tensor& weight, const Tensor& out) const;
    void norm(Runner& run, const Tensor& x, const Tensor& weight) const { norm(run, x, weight, x); }
    // Returns the rotation of a row's last channels.
    RowRotation tail_rotation(int64_t width) const {
        return {.first = int32_t(width - 2 * frequencies().shape[0]), .frequencies = frequencies()};
    }
    void rotate_tail(Runner& run, const Tensor& x, const StepBatch& batch, const Tensor& out) const;
    Tensor norm_query(Runner& run, const Tensor& projected, const StepBatch& batch) const;
    static Compressor compressor(const Projected& of_hidden, const CompressorWeights& weights,
                                 const CacheGroup& state);
    Indexer indexer(const Projected& of_hidden, const Projected& of_latent, const LayerStep& step) const;
    void write_shared(Runner& run, const Projected& of_hidden, const LayerStep& step,
                      HybridStep& inner) const;
    void project_out(Runner& run, const Tensor& core, const Tensor& out) const;

    HybridWeights weights_;
    LayerKind kind_;
    LayerSources sources_;
    int32_t ratio_, tokens_before_ = 0;  // tokens of an entry before its last token
    HostTensor before_;                  // i32 [1]: tokens_before_
    double scale_;
};

Tensor HybridLayer::project(Runner& run, const Tensor& x, const HostTensor& w) const {
    const Tensor out = run.activation(precision_.activations, {x.shape[0], 1, w.view.shape[0]});
    run.run<Stage::project>({.x = x, .w = as_matrix(w), .out = out});
    return out;
}

void HybridLayer::norm(Runner& run, const Tensor& x, const Tensor& weight, const Tensor& out) const {
    run.run<Stage::norm>({.eps = config_.common.rms_norm_eps, .x = x, .weight = weight, .out = out});
}

void HybridLayer::rotate_tail(Runner& run, const Tensor& x, const StepBatch& batch, const Tensor& out) const {
    run.run<Stage::rope>({.first = tail_rotation(x.shape[2]).first,
                          .x = x,
                          .positions = batch.rope_position,
                          .frequencies = frequencies(),
                          .out = out});
}

// projected: [T,1,H*D]
Tensor HybridLayer::norm_query(Runner& run, const Tensor& projected, const StepBatch& batch) const {
    const int64_t tokens = projected.shape[0], heads = config_.common.heads, width = config_.hybrid->head_dim;
    const Tensor q = reshape_rows(projected, {heads, width});
    if (!config_.hybrid->sharing) norm(run, q, {});  // V4: per head, without a weight
    const bool same = precision_.queries == precision_.activations;
    const Tensor rotated = same ? Tensor{} : run.activation(precision_.queries, {tokens, heads, width});
    rotate_tail(run, q, batch, rotated);
    run.tap("q_rot", same ? q : rotated);
    return same ? q : rotated;
}

Compressor HybridLayer::compressor(const Projected& of_hidden, const CompressorWeights& weights,
                                   const CacheGroup& state) {
    const int64_t channels = weights.kv.view.shape[0];
    return {.kv = reshape_rows(of_hidden.by(weights.kv), {channels}),
            .score = reshape_rows(of_hidden.by(weights.gate), {channels}),
            .ape = weights.ape.view,
            .norm_weight = weights.norm.view,
            .state = state};
}

Indexer HybridLayer::indexer(const Projected& of_hidden, const Projected& of_latent,
                             const LayerStep& step) const {
    const int64_t heads = config_.indexer->heads, width = config_.indexer->head_dim;
    Indexer out{.q = reshape_rows(of_latent.by(weights_.indexer->q_b), {heads, width}),
                .rotation = tail_rotation(width),
                .w = reshape_rows(of_hidden.by(weights_.indexer->head_weights), {heads}),
                .factor = config_.indexer->weight_factor(),
                .amax_floor = 1e-4,
                .topk = config_.indexer->topk,
                .keys = step.caches.index};
    if (sources_.candidates < 0) return out;
    out.block_size = int32_t(config_.hybrid->sharing->candidate_block_size);
    if (sources_.candidates == layer_) out.best_blocks = step.best_blocks;
    else out.blocks = step.candidates;
    return out;
}

// V4.1: writes the entries for this layer and later ones, and their index keys, computed from unrotated
// entries.
void HybridLayer::write_shared(Runner& run, const Projected& of_hidden, const LayerStep& step,
                               HybridStep& inner) const {
    const CompressorWeights& weights = *weights_.compressor;
    const int64_t width = config_.hybrid->head_dim;
    inner.compressor = {.kv = reshape_rows(of_hidden.by(weights.kv), {width}),
                        .norm_weight = weights.norm.view,
                        .state = step.caches.state};
    if (ratio_ > 1) inner.compressor.score = reshape_rows(of_hidden.by(weights.gate), {width});
    const Tensor latents = write_entries(run, step.batch, inner);
    inner.compressor = {};
    run.tap("latent", reshape_rows(latents, {width}));
    const Tensor keys = project(run, latents, weights_.indexer->k);
    norm(run, keys, weights_.indexer->k_norm.view);
    const auto rotate = [&](const Tensor& positions, int32_t inverse) {
        run.run<Stage::rope>({.inverse = inverse,
                              .first = tail_rotation(keys.shape[2]).first,
                              .x = keys,
                              .positions = positions,
                              .frequencies = frequencies()});
    };
    rotate(step.batch.position, 0);
    if (ratio_ > 1) {
        Tensor back = before_.view;  // the same number for every token
        back.shape[0] = latents.shape[0];
        back.stride_elems[0] = 0;
        rotate(back, 1);
    }
    inner.index_key.head = reshape_rows(keys, {keys.shape[2]});
    run.tap("entries_index", keys);
}

void HybridLayer::project_out(Runner& run, const Tensor& core, const Tensor& out) const {
    const int64_t tokens = core.shape[0], groups = config_.hybrid->o_groups,
                  rank = config_.hybrid->o_lora_rank;
    const int64_t inner = config_.common.heads * config_.hybrid->head_dim / groups;
    const Tensor lora = run.activation(precision_.operands(), {tokens, groups, rank});
    run.run<Stage::out_project>(
        {.x = reshape_rows(core, {groups, inner}), .w = weights_.out_a_groups(config_), .out = lora});
    run.tap("o_lora", lora);
    run.run<Stage::out_project>({.x = reshape_rows(lora, {1, groups * rank}),
                                 .w = as_matrix(weights_.out_b),
                                 .out = reshape_rows(out, {1, config_.common.hidden_size})});
}

void HybridLayer::forward(Runner& run, const LayerStep& step) const {
    const int64_t tokens = step.hidden.shape[0], width = config_.hybrid->head_dim;
    const Projected of_hidden(run, reshape_rows(step.hidden, {1, config_.common.hidden_size}),
                              hidden_weights(weights_), precision_.activations);
    const Tensor& projected = of_hidden.by(weights_.q_a);
    const Tensor latent = operand_of(run, projected);
    norm(run, projected, weights_.q_norm.view, latent);
    run.tap("qr", latent);
    const Projected of_latent(run, latent, latent_weights(weights_), precision_.activations);

    HybridStep inner{};
    inner.kind = kind_;
    inner.ratio = ratio_;
    inner.q = norm_query(run, of_latent.by(weights_.q_b), step.batch);
    inner.key = {.head = reshape_rows(of_hidden.by(weights_.kv), {width}),
                 .eps = config_.common.rms_norm_eps,
                 .norm_weight = weights_.kv_norm.view,
                 .rotation = tail_rotation(width)};
    inner.frequencies = frequencies();
    inner.eps = config_.common.rms_norm_eps;
    inner.softmax_scale = scale_;
    inner.sink = weights_.sink.view;
    inner.window = step.caches.window;
    inner.entries = step.caches.entries;
    if (sources_.entries == layer_ && config_.hybrid->sharing) write_shared(run, of_hidden, step, inner);
    else if (sources_.entries == layer_)
        inner.compressor = compressor(of_hidden, *weights_.compressor, step.caches.state);
    if (kind_ == LayerKind::compressed_sparse) {
        inner.index_compressor = compressor(of_hidden, weights_.indexer->compressor, step.caches.index_state);
        inner.indexer = indexer(of_hidden, of_latent, step);
    } else if (sources_.selection == layer_) {
        inner.indexer = indexer(of_hidden, of_latent, step);
    }
    inner.forced.indices = step.forced_topk;
    inner.topk = step.topk;
    inner.out = run.activation(precision_.operands(), {tokens, config_.common.heads, width});
    run_hybrid_step(run, step.batch, inner);
    project_out(run, inner.out, step.out);
}

}  // namespace

std::unique_ptr<Layer> make_hybrid_layer(const Checkpoint& checkpoint, const AttentionConfig& config,
                                         int layer, LayerPrecision precision, Device& device) {
    return std::make_unique<HybridLayer>(checkpoint, config, layer, precision, device);
}

}  // namespace smla
