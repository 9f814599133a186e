// DeepSeek-V3.2 and GLM-5.x: multi-head latent attention over the keys that a small indexer picks. GLM-5.3
// rotates nothing, and its indexer picks pools of neighbouring tokens.
#include "core/hadamard.h"
#include "layers/layer.h"

namespace smla {

namespace {

class DsaLayer final : public Layer {
public:
    DsaLayer(const Checkpoint& checkpoint, const AttentionConfig& config, int layer, LayerPrecision precision,
             Device& device)
        : Layer(config, layer, precision),
          weights_(load_dsa_weights(checkpoint, config, layer, weight_options(precision))) {
        place(weights_, device);
        scale_ = config.softmax_scale();
    }

    void forward(Runner& run, const LayerStep& step) const override;
    Tensor input_norm() const override { return weights_.input_norm.view; }

private:
    struct Query {
        Tensor latent;  // [T,1,q_lora] normed
        Tensor heads;   // [T,H,nope + rope]
    };
    Query project_query(Runner& run, const Tensor& hidden) const;
    void project_keys(Runner& run, const Tensor& hidden, const StepBatch& batch, DsaStep& inner) const;
    void project_index(Runner& run, const LayerStep& step, const Query& query, DsaStep& inner) const;
    void pool_index(Runner& run, const LayerStep& step, const Tensor& k, DsaStep& inner) const;
    bool rotates() const { return config_.common.rope_dim > 0; }

    DsaWeights weights_;
    double scale_;
};

DsaLayer::Query DsaLayer::project_query(Runner& run, const Tensor& hidden) const {
    const int64_t tokens = hidden.shape[0], rank = config_.common.q_lora_rank, heads = config_.common.heads;
    const Tensor latent = run.activation(precision_.activations, {tokens, 1, rank});
    Query query{operand_of(run, latent),
                run.activation(precision_.operands(), {tokens, heads, config_.qk_head_dim()})};
    run.run<Stage::project>({.x = reshape_rows(hidden, {1, config_.common.hidden_size}),
                             .w = as_matrix(weights_.q_a),
                             .out = latent});
    run.run<Stage::norm>({.eps = config_.common.latent_norm_eps,
                          .x = latent,
                          .weight = weights_.q_norm.view,
                          .out = query.latent});
    run.tap("qr", query.latent);
    const Tensor flat = reshape_rows(query.heads, {1, heads * config_.qk_head_dim()});
    run.run<Stage::project>({.x = query.latent, .w = as_matrix(weights_.q_b), .out = flat});
    return query;
}

void DsaLayer::project_keys(Runner& run, const Tensor& hidden, const StepBatch& batch, DsaStep& inner) const {
    const int64_t tokens = hidden.shape[0], rank = config_.dsa->kv_lora_rank, rope = config_.common.rope_dim;
    const Tensor both = run.activation(precision_.activations, {tokens, 1, rank + rope});
    run.run<Stage::project>({.x = reshape_rows(hidden, {1, config_.common.hidden_size}),
                             .w = as_matrix(weights_.kv_a),
                             .out = both});
    const Tensor latent = slice(both, 2, 0, rank);
    run.run<Stage::norm>(
        {.eps = config_.common.latent_norm_eps, .x = latent, .weight = weights_.kv_norm.view, .out = latent});
    inner.latent = reshape_rows(latent, {rank});
    run.tap("latent", inner.latent);
    if (!rotates()) return;
    run.run<Stage::rope>(
        {.first = int32_t(rank), .x = both, .positions = batch.rope_position, .frequencies = frequencies()});
    inner.k_rope = reshape_rows(slice(both, 2, rank, rank + rope), {rope});
    run.tap("kpe", inner.k_rope);
}

void DsaLayer::project_index(Runner& run, const LayerStep& step, const Query& query, DsaStep& inner) const {
    const Tensor& hidden = step.hidden;
    const IndexerConfig& index = *config_.indexer;
    const int64_t tokens = hidden.shape[0], heads = index.heads, width = index.head_dim;
    const smla_dtype dtype = precision_.activations;
    const Tensor q = run.activation(dtype, {tokens, heads, width}),
                 k = run.activation(dtype, {tokens, 1, width});
    const Tensor w = run.activation(dtype, {tokens, 1, heads});
    const Tensor flat = reshape_rows(q, {1, heads * width});
    run.run<Stage::project>({.x = query.latent, .w = as_matrix(weights_.indexer->q_b), .out = flat});
    run.run<Stage::project>({.x = reshape_rows(hidden, {1, config_.common.hidden_size}),
                             .w = as_matrix(weights_.indexer->k),
                             .out = k});
    run.run<Stage::norm>({.kind = SMLA_NORM_LAYER,
                          .eps = index.key_norm_eps,
                          .x = k,
                          .weight = weights_.indexer->k_norm.view,
                          .bias = weights_.indexer->k_norm_bias.view,
                          .out = k});
    for (const Tensor& x : {q, k})
        if (rotates())
            run.run<Stage::rope>({.style = index.rope_style,
                                  .x = x,
                                  .positions = step.batch.rope_position,
                                  .frequencies = frequencies()});
    run.run<Stage::project>({.x = reshape_rows(hidden, {1, config_.common.hidden_size}),
                             .w = as_matrix(weights_.indexer->head_weights),
                             .out = w});
    run.tap("index_q", q);
    run.tap("index_k", k);

    inner.indexer = {.q = q,
                     .w = reshape_rows(w, {heads}),
                     .factor = index.weight_factor(),
                     .amax_floor = 1e-10,  // of V3.2's query quantiser; V4 uses 1e-4
                     .query_dtype = precision_.queries,
                     .topk = index.topk,
                     .keys = step.caches.index};
    if (config_.dsa->pool) pool_index(run, step, reshape_rows(k, {width}), inner);
    else inner.index_k = reshape_rows(k, {width});
}

void DsaLayer::pool_index(Runner& run, const LayerStep& step, const Tensor& k, DsaStep& inner) const {
    const int64_t tokens = step.hidden.shape[0], width = config_.indexer->head_dim;
    const Tensor gate = run.activation(precision_.activations, {tokens, 1, width});
    run.run<Stage::project>({.x = reshape_rows(step.hidden, {1, config_.common.hidden_size}),
                             .w = as_matrix(weights_.indexer->pool_gate),
                             .out = gate});
    // As vLLM: keys that are rounded to fp8 or fp4 are rotated before, so that outliers spread.
    const bool quantised = kIndexFormats & ~kRowFormats & format_bit(step.caches.index.cache.format);
    inner.indexer.hadamard = quantised && is_power_of_two(width);
    inner.indexer.amax_floor = 1e-4;
    inner.index_compressor = {.kv = k,
                              .score = reshape_rows(gate, {width}),
                              .ape = weights_.indexer->pool_ape.view,
                              .state = step.caches.index_state,
                              .hadamard = inner.indexer.hadamard};
}

void DsaLayer::forward(Runner& run, const LayerStep& step) const {
    const int64_t heads = config_.common.heads, value = config_.dsa->v_head_dim;
    DsaStep inner{};
    inner.pool = int32_t(config_.dsa->pool);
    inner.visible_pools = step.caches.entries.visible;
    const Query query = project_query(run, step.hidden);
    project_keys(run, step.hidden, step.batch, inner);
    if (weights_.indexer) project_index(run, step, query, inner);

    inner.w_uk = transposed(weights_.key_up(config_));  // [H,L,nope]
    inner.w_uv = weights_.value_up(config_);            // [H,v,L]

    inner.q = query.heads;
    inner.frequencies = frequencies();
    inner.query_dtype = precision_.queries;
    inner.softmax_scale = scale_;
    inner.kv = step.caches.kv;
    inner.forced.indices = step.forced_topk;
    inner.topk = step.topk;
    inner.out = run.activation(precision_.operands(), {step.hidden.shape[0], heads, value});
    run_dsa_step(run, step.batch, inner);
    run.tap("core_out", inner.out);

    const Tensor flat = reshape_rows(inner.out, {1, heads * value});
    run.run<Stage::out_project>({.x = flat,
                                 .w = as_matrix(weights_.out),
                                 .out = reshape_rows(step.out, {1, config_.common.hidden_size})});
}

}  // namespace

std::unique_ptr<Layer> make_dsa_layer(const Checkpoint& checkpoint, const AttentionConfig& config, int layer,
                                      LayerPrecision precision, Device& device) {
    return std::make_unique<DsaLayer>(checkpoint, config, layer, precision, device);
}

}  // namespace smla
