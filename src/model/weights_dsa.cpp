#include "model/weight_reader.h"

namespace smla {

namespace {

DsaIndexerWeights read_indexer_weights(WeightReader& reader, const std::string& prefix,
                                       const AttentionConfig& config) {
    const CommonConfig& common = config.common;
    const IndexerConfig& indexer = *config.indexer;
    DsaIndexerWeights out;
    out.q_b = reader.matrix({prefix + "wq_b.weight"}, indexer.heads * indexer.head_dim, common.q_lora_rank);
    out.k = reader.matrix({prefix + "wk.weight"}, indexer.head_dim, common.hidden_size);
    out.k_norm = reader.vector({prefix + "k_norm.weight"}, indexer.head_dim);
    out.k_norm_bias = reader.vector({prefix + "k_norm.bias"}, indexer.head_dim);
    out.head_weights = reader.matrix({prefix + "weights_proj.weight"}, indexer.heads, common.hidden_size);
    if (const int64_t pool = config.dsa->pool) {
        out.pool_gate =
            reader.matrix({prefix + "index_kpool_compress_gate"}, indexer.head_dim, common.hidden_size);
        out.pool_ape = reader.table({prefix + "index_kpool_compress_ape"}, pool, indexer.head_dim);
    }
    return out;
}

// Returns rows [first, first + n) of every head of kv_b.
Tensor head_rows(const HostTensor& kv_b, const AttentionConfig& config, int64_t first, int64_t n) {
    const DsaConfig& dsa = *config.dsa;
    const int64_t per_head = dsa.qk_nope_head_dim + dsa.v_head_dim;
    const Tensor heads = reshape(kv_b.view, {config.common.heads, per_head, dsa.kv_lora_rank});
    return slice(heads, 1, first, first + n);
}

}  // namespace

Tensor DsaWeights::key_up(const AttentionConfig& config) const {
    return head_rows(kv_b, config, 0, config.dsa->qk_nope_head_dim);
}

Tensor DsaWeights::value_up(const AttentionConfig& config) const {
    return head_rows(kv_b, config, config.dsa->qk_nope_head_dim, config.dsa->v_head_dim);
}

DsaWeights load_dsa_weights(const Checkpoint& checkpoint, const AttentionConfig& config, int64_t layer,
                            const WeightOptions& options) {
    SMLA_CHECK(config.dsa, "config.model_type", config.common.model_type,
               "deepseek_v32, glm_moe_dsa or glm5_next");
    config.check_computed(layer);
    const LayerKind kind = config.layer_kind(layer);
    const CommonConfig& common = config.common;
    const DsaConfig& dsa = *config.dsa;
    const int64_t heads = common.heads;
    WeightReader reader(checkpoint, config, layer, options);

    std::string block = text("model.layers.", layer, ".");
    // Multimodal models have the longer prefixes. A packed q_a_proj has no .weight; norms are never packed.
    for (const char* stem : {"", "model.language_model.", "language_model.model.", "language_model."}) {
        const std::string other = text(stem, "layers.", layer, ".");
        for (const char* tensor : {"q_a_proj.weight", "q_a_layernorm.weight"})
            if (reader.has(other + "self_attn." + tensor)) block = other;
    }
    const std::string prefix = block + "self_attn.";

    DsaWeights out;
    out.input_norm = reader.optional_vector({block + "input_layernorm.weight"}, common.hidden_size);
    out.q_a = reader.matrix({prefix + "q_a_proj.weight"}, common.q_lora_rank, common.hidden_size);
    out.q_norm = reader.vector({prefix + "q_a_layernorm.weight"}, common.q_lora_rank);
    out.q_b = reader.matrix({prefix + "q_b_proj.weight"}, heads * config.qk_head_dim(), common.q_lora_rank);
    out.kv_a = reader.matrix({prefix + "kv_a_proj_with_mqa.weight"}, dsa.kv_lora_rank + common.rope_dim,
                             common.hidden_size);
    out.kv_norm = reader.vector({prefix + "kv_a_layernorm.weight"}, dsa.kv_lora_rank);
    // Reads all heads, because a head's rows (448 in GLM) need not be a multiple of the scale blocks.
    out.kv_b = reader.matrix({prefix + "kv_b_proj.weight"}, heads * (dsa.qk_nope_head_dim + dsa.v_head_dim),
                             dsa.kv_lora_rank);
    out.out = reader.matrix({prefix + "o_proj.weight"}, common.hidden_size, heads * dsa.v_head_dim);
    if (kind == LayerKind::dsa) out.indexer = read_indexer_weights(reader, prefix + "indexer.", config);
    reader.throw_if_any();
    return out;
}

}  // namespace smla
