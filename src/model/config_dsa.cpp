#include "model/config_parts.h"

namespace smla {

namespace {

// Which layers have an indexer: a list of names, a string of letters, or a rule (GLM-5.2). V3.2 and GLM-5
// name none: all.
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

void read_dsa(const ObjectReader& reader, AttentionConfig& config) {
    DsaConfig dsa;
    dsa.kv_lora_rank = reader.integer("kv_lora_rank", 1, kMaxHeadDim);
    dsa.qk_nope_head_dim = reader.integer("qk_nope_head_dim", 1, kMaxHeadDim);
    dsa.v_head_dim = reader.integer("v_head_dim", 1, kMaxHeadDim);
    config.common.rope_dim = reader.integer("qk_rope_head_dim", 2, kMaxHeadDim);
    const int64_t rope_dim = config.common.rope_dim;
    if (rope_dim % 2 != 0)
        reader.add("qk_rope_head_dim", text(rope_dim), "an even number: pairs are rotated");
    if (dsa.kv_lora_rank + rope_dim > kMaxHeadDim && reader.good({"kv_lora_rank", "qk_rope_head_dim"}))
        reader.add("kv_lora_rank", text(dsa.kv_lora_rank),
                   text("at most ", kMaxHeadDim, " together with qk_rope_head_dim, ", rope_dim));
    if (!reader.boolean("rope_interleave", true))
        reader.add("rope_interleave", "false",
                   "true: main attention rotates pairs (2i, 2i+1) in every published model");

    bool has_theta = reader.has("rope_theta");
    dsa.rope.theta = reader.number("rope_theta", kMinTheta, kMaxTheta, 10000);
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        if (const std::optional<ObjectReader> rope = reader.object(name)) {
            has_theta = has_theta || rope->has("rope_theta");
            read_rope(*rope, true, dsa.rope);
        }
    }
    if (!has_theta) reader.add("rope_theta", "absent", "a number, here or in rope_parameters");

    config.indexer = read_indexer(reader);
    // As vLLM and SGLang decide; the main attention's rope_interleave says nothing of the indexer. GLM's own
    // code knows interleaved only, and configs that transformers 5.17 saves do not name it.
    const bool glm = config.common.model_type == "glm_moe_dsa";
    const bool interleaved = reader.boolean("indexer_rope_interleave", glm);
    config.indexer->rope_style = interleaved ? SMLA_ROPE_INTERLEAVED : SMLA_ROPE_HALF;
    if (config.indexer->head_dim < rope_dim && reader.good({"index_head_dim", "qk_rope_head_dim"}))
        reader.add("index_head_dim", text(config.indexer->head_dim),
                   text("at least qk_rope_head_dim, ", rope_dim));

    read_index_sharing(reader, dsa);
    if (config.common.layers == 0) config.common.layers = int64_t(dsa.has_indexer.size());
    if (!dsa.has_indexer.empty() && int64_t(dsa.has_indexer.size()) < config.common.layers)
        reader.add(reader.has("indexer_types") ? "indexer_types" : "index_topk_pattern",
                   text(dsa.has_indexer.size(), " layers"),
                   text("num_hidden_layers, ", config.common.layers));
    config.dsa = dsa;
    if (config.layer_kind(0) == LayerKind::dsa_shared)
        reader.add("indexer_types", "layer 0 shared", "layer 0 full: nothing before it selects");
}

}  // namespace smla
