// DeepSeek-V3.2 and GLM-5.x: multi-head latent attention over the keys that a small indexer selects. GLM-5.3
// rotates nothing, and its indexer selects pools of neighboring tokens.
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
    Tensor norm_query(Runner& run, const Tensor& latent) const;
    void set_keys(const Tensor& both, DsaStep& inner) const;
    void set_index(Runner& run, const LayerStep& step, const Projected& of_hidden, const Tensor& q,
                   DsaStep& inner) const;
    void pool_index(Runner& run, const LayerStep& step, const KeyRow& key, const Tensor& gate,
                    DsaStep& inner) const;
    bool rotates() const { return config_.common.rope_dim > 0; }

    DsaWeights weights_;
    double scale_;
};

// Returns the operand of products with the query latent.
Tensor DsaLayer::norm_query(Runner& run, const Tensor& latent) const {
    const Tensor out = operand_of(run, latent);
    run.run<Stage::norm>(
        {.eps = config_.common.latent_norm_eps, .x = latent, .weight = weights_.q_norm.view, .out = out});
    run.tap("qr", out);
    return out;
}

// both: [T,1,L + R]
void DsaLayer::set_keys(const Tensor& both, DsaStep& inner) const {
    const int64_t rank = config_.dsa->kv_lora_rank, rope = config_.common.rope_dim;
    inner.key = {.head = reshape_rows(slice(both, 2, 0, rank), {rank}),
                 .eps = config_.common.latent_norm_eps,
                 .norm_weight = weights_.kv_norm.view};
    if (!rotates()) return;
    inner.key.tail = reshape_rows(slice(both, 2, rank, rank + rope), {rope});
    inner.key.rotation = {.first = int32_t(rank), .frequencies = frequencies()};
}

void DsaLayer::set_index(Runner& run, const LayerStep& step, const Projected& of_hidden, const Tensor& q,
                         DsaStep& inner) const {
    const IndexerConfig& index = *config_.indexer;
    const DsaIndexerWeights& weights = *weights_.indexer;
    KeyRow key{.head = reshape_rows(of_hidden.by(weights.k), {index.head_dim}),
               .norm_kind = SMLA_NORM_LAYER,
               .eps = index.key_norm_eps,
               .norm_weight = weights.k_norm.view,
               .norm_bias = weights.k_norm_bias.view};
    if (rotates()) key.rotation = {.style = index.rope_style, .frequencies = frequencies()};

    inner.indexer = {.q = reshape_rows(q, {index.heads, index.head_dim}),
                     .rotation = key.rotation,
                     .w = reshape_rows(of_hidden.by(weights.head_weights), {index.heads}),
                     .factor = index.weight_factor(),
                     .amax_floor = 1e-10,  // floor in V3.2's query quantizer; V4's is 1e-4
                     .query_dtype = precision_.queries,
                     .topk = index.topk,
                     .keys = step.caches.index};
    if (config_.dsa->pool) pool_index(run, step, key, of_hidden.by(weights.pool_gate), inner);
    else inner.index_key = key;
}

void DsaLayer::pool_index(Runner& run, const LayerStep& step, const KeyRow& key, const Tensor& gate,
                          DsaStep& inner) const {
    const int64_t width = config_.indexer->head_dim;
    const Tensor k = reshape_rows(key.head, {1, width});
    run.run<Stage::norm>({.kind = key.norm_kind,
                          .eps = key.eps,
                          .x = k,
                          .weight = key.norm_weight,
                          .bias = key.norm_bias,
                          .out = k});
    run.tap("index_k", k);
    // As in vLLM, a Hadamard transform before rounding to fp8 or fp4 spreads outliers.
    const bool quantised = kIndexFormats & ~kRowFormats & format_bit(step.caches.index.cache.format);
    inner.indexer.hadamard = quantised && is_power_of_two(width);
    inner.indexer.amax_floor = 1e-4;
    inner.index_compressor = {.kv = key.head,
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
    const Projected of_hidden(run, reshape_rows(step.hidden, {1, config_.common.hidden_size}),
                              hidden_weights(weights_), precision_.activations);
    const Tensor latent = norm_query(run, of_hidden.by(weights_.q_a));
    std::vector<Projected::Product> products{{&weights_.q_b, precision_.operands()}};
    if (weights_.indexer) products.push_back({&weights_.indexer->q_b, precision_.activations});
    const Projected of_latent(run, latent, products);
    set_keys(of_hidden.by(weights_.kv_a), inner);
    if (weights_.indexer) set_index(run, step, of_hidden, of_latent.by(weights_.indexer->q_b), inner);

    inner.w_uk = transposed(weights_.key_up(config_));  // [H,L,nope]
    inner.w_uv = weights_.value_up(config_);            // [H,v,L]

    inner.q = reshape_rows(of_latent.by(weights_.q_b), {heads, config_.qk_head_dim()});
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
