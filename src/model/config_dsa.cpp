#include "model/config_parts.h"

#include <algorithm>

namespace smla {

namespace {

// Reads which layers have an indexer: a list of names, a string of letters, or a rule (GLM-5.2). Configs of
// V3.2 and GLM-5 omit this, because all their layers have one.
void read_index_sharing(const ObjectReader& reader, DsaConfig& dsa) {
    if (const Json* list = read_layer_list(reader, "indexer_types")) {
        for (size_t i = 0; i < list->size(); ++i) {
            const Json& type = (*list)[i];
            if (!is_string(type, "full") && !is_string(type, "shared"))
                reader.add(text("indexer_types[", i, "]"), json_text(type), "\"full\" or \"shared\"");
            dsa.has_indexer.push_back(!is_string(type, "shared"));
        }
    } else if (const std::optional<std::string> pattern = reader.string("index_topk_pattern")) {
        if (pattern->size() > size_t(kMaxLayers))
            return reader.add("index_topk_pattern", text(pattern->size(), " layers"),
                              text("at most ", kMaxLayers));
        for (size_t i = 0; i < pattern->size(); ++i) {
            const char letter = (*pattern)[i];
            if (letter != 'F' && letter != 'S')
                reader.add(text("index_topk_pattern[", i, "]"), printable({&letter, 1}), "F or S");
            dsa.has_indexer.push_back(letter != 'S');
        }
    }
    dsa.index_frequency = reader.integer("index_topk_freq", 1, kMaxLayers, 1);
    dsa.index_offset = reader.integer("index_skip_topk_offset", 0, kMaxLayers, 2);
}

}  // namespace

IndexerConfig read_indexer(const ObjectReader& reader) {
    IndexerConfig indexer;
    indexer.heads = reader.integer("index_n_heads", 1, kMaxHeads);
    indexer.head_dim = reader.integer("index_head_dim", 1, kMaxHeadDim);
    indexer.topk = reader.integer("index_topk", 1, kMaxTopk);
    return indexer;
}

namespace {

void read_rotary(const ObjectReader& reader, AttentionConfig& config, DsaConfig& dsa) {
    config.common.rope_dim = reader.integer("qk_rope_head_dim", 2, kMaxHeadDim);
    const int64_t rope_dim = config.common.rope_dim;
    if (rope_dim % 2 != 0) reader.add("qk_rope_head_dim", text(rope_dim), "an even number");
    if (dsa.kv_lora_rank + rope_dim > kMaxHeadDim && reader.good({"kv_lora_rank", "qk_rope_head_dim"}))
        reader.add("kv_lora_rank", text(dsa.kv_lora_rank),
                   text("at most ", kMaxHeadDim - rope_dim, " (", kMaxHeadDim, " - qk_rope_head_dim)"));
    if (!reader.boolean("rope_interleave", true))
        reader.add("rope_interleave", "false", "true (main attention supports only interleaved pairs)");

    bool has_theta = reader.has("rope_theta");
    dsa.rope.theta = reader.number("rope_theta", kMinTheta, kMaxTheta, 10000);
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        if (const std::optional<ObjectReader> rope = reader.object(name)) {
            has_theta = has_theta || rope->has("rope_theta");
            read_rope(*rope, true, dsa.rope);
        }
    }
    if (!has_theta) reader.add("rope_theta", "absent", "a number, here or in rope_parameters");
    // This is the rule of vLLM and SGLang; rope_interleave only applies to the main attention. GLM's own code
    // only supports interleaved, and configs saved by transformers 5.17 omit the option.
    const bool glm = config.common.model_type == "glm_moe_dsa";
    const bool interleaved = reader.boolean("indexer_rope_interleave", glm);
    config.indexer->rope_style = interleaved ? SMLA_ROPE_INTERLEAVED : SMLA_ROPE_HALF;
    if (config.indexer->head_dim < rope_dim && reader.good({"index_head_dim", "qk_rope_head_dim"}))
        reader.add("index_head_dim", text(config.indexer->head_dim),
                   text("at least ", rope_dim, " (qk_rope_head_dim)"));
}

// GLM-5.3 rotates nothing, and its indexer selects pools. Defaults are from transformers, which names sparse
// layers "indexed_attention" since 5.23.
void read_pools(const ObjectReader& reader, AttentionConfig& config, DsaConfig& dsa) {
    if (const int64_t rope = reader.integer("qk_rope_head_dim", 0, kMaxHeadDim, 0))
        reader.add("qk_rope_head_dim", text(rope), "0 (attention of this model has no RoPE)");
    dsa.pool = reader.integer("index_kpool", 1, kMaxPool, 16);
    int64_t& topk = config.indexer->topk;
    if (reader.good({"index_topk", "index_kpool"}) && topk % dsa.pool != 0)
        reader.add("index_topk", text(topk), text("a multiple of index_kpool (", dsa.pool, ")"));
    topk /= dsa.pool;
    // Without the tail, a token before the first whole pool could attend to nothing.
    if (!reader.boolean("index_kpool_always_select_tail", true))
        reader.add("index_kpool_always_select_tail", "false", "true");

    if (const Json* types = read_layer_list(reader, "layer_types")) {
        for (size_t i = 0; i < types->size(); ++i) {
            const Json& type = (*types)[i];
            const bool linear = is_string(type, "linear_attention");
            if (!linear && !is_string(type, "deepseek_sparse_attention") &&
                !is_string(type, "indexed_attention") && !is_string(type, "full_attention"))
                reader.add(text("layer_types[", i, "]"), json_text(type),
                           "\"linear_attention\" or \"deepseek_sparse_attention\"");
            dsa.linear.push_back(linear);
        }
        if (config.common.layers == 0) config.common.layers = int64_t(dsa.linear.size());
        if (int64_t(dsa.linear.size()) < config.common.layers)
            reader.add("layer_types", text(dsa.linear.size(), " layers"),
                       text("at least ", config.common.layers, " (num_hidden_layers)"));
    } else if (config.common.layers == 0) {
        reader.add("layer_types", "absent",
                   "a list, or num_hidden_layers (every fourth layer is then sparse)");
    }
    for (int64_t layer = int64_t(dsa.linear.size()); layer < config.common.layers; ++layer)
        dsa.linear.push_back(layer % 4 != 3);
}

// Checks that the first layer with sparse attention makes its own selection.
void check_first_selection(const ObjectReader& reader, const AttentionConfig& config) {
    const std::vector<bool>& linear = config.dsa->linear;  // may list more layers than the model has
    const int64_t listed = std::min(int64_t(linear.size()), config.common.layers);
    const int64_t first = std::find(linear.begin(), linear.begin() + listed, false) - linear.begin();
    if (listed > 0 && first == listed)
        return reader.add("layer_types", "only linear attention layers",
                          "at least one sparse attention layer");
    if (config.layer_kind(first) == LayerKind::dsa_shared)
        reader.add("indexer_types", text("a shared layer ", first),
                   text("a full layer ", first, " (the first sparse layer must select)"));
}

}  // namespace

void read_dsa(const ObjectReader& reader, AttentionConfig& config) {
    DsaConfig dsa;
    dsa.kv_lora_rank = reader.integer("kv_lora_rank", 1, kMaxHeadDim);
    dsa.qk_nope_head_dim = reader.integer("qk_nope_head_dim", 1, kMaxHeadDim);
    dsa.v_head_dim = reader.integer("v_head_dim", 1, kMaxHeadDim);
    config.indexer = read_indexer(reader);
    const bool pools = config.common.model_type == "glm5_next";
    if (pools) read_pools(reader, config, dsa);
    else read_rotary(reader, config, dsa);

    read_index_sharing(reader, dsa);
    if (config.common.layers == 0) config.common.layers = int64_t(dsa.has_indexer.size());
    if (!dsa.has_indexer.empty() && int64_t(dsa.has_indexer.size()) < config.common.layers)
        reader.add(reader.has("indexer_types") ? "indexer_types" : "index_topk_pattern",
                   text(dsa.has_indexer.size(), " layers"),
                   text("at least ", config.common.layers, " (num_hidden_layers)"));
    config.dsa = dsa;
    if (reader.good({"layer_types"})) check_first_selection(reader, config);
}

}  // namespace smla
