#include "model/weight_reader.h"

namespace smla {

namespace {

// Tensor names of a V4 checkpoint: DeepSeek's (also of engines that rename `attn` to `self_attn`), or
// transformers'.
struct Spelling {
    std::string block, attention;
    bool original;

    // Returns the names of one tensor; transformers has renamed some tensors.
    std::vector<std::string> names(const std::string& own,
                                   std::initializer_list<const char*> transformers) const {
        if (original) return {attention + own};
        std::vector<std::string> out;
        for (const char* each : transformers) out.push_back(attention + each);
        return out;
    }
};

Spelling find_spelling(const WeightReader& reader, const AttentionConfig& config, int64_t layer) {
    const int64_t layers = config.common.layers;
    const bool mtp = layers > 0 && layer >= layers;
    const std::string own = mtp ? text("mtp.", layer - layers, ".") : text("layers.", layer, ".");
    const std::string transformers = text("layers.", layer, ".");
    for (const char* lead : {"", "model.", "language_model.model."})
        for (const char* part : {"attn.", "self_attn."})
            for (const char* tensor : {"wq_a.weight", "q_norm.weight"})  // a packed wq_a has no .weight
                if (reader.has(text(lead, own, part, tensor)))
                    return {lead + own, text(lead, own, part), true};
    for (const char* lead : {"model.", ""})
        for (const char* tensor : {"q_a_proj.weight", "q_a_norm.weight"})
            if (reader.has(text(lead, transformers, "self_attn.", tensor)))
                return {lead + transformers, text(lead, transformers, "self_attn."), false};
    return {own, text(own, "attn."), true};  // errors then show the published names
}

CompressorWeights read_compressor(WeightReader& reader, const Spelling& spelling, bool indexer, int64_t ratio,
                                  int64_t head_dim, int64_t hidden) {
    // Where windows overlap, a token is in two of them, each with half of the channels.
    const bool overlaps = hybrid_layer_kind(ratio) == LayerKind::compressed_sparse;
    const std::string own = indexer ? "indexer.compressor." : "compressor.";
    const std::string theirs = indexer ? "compressor.indexer." : "compressor.";
    const auto names = [&](const char* own_name, const char* their_name) {
        return spelling.names(own + own_name, {(theirs + their_name).c_str()});
    };
    const int64_t width = overlaps ? 2 * head_dim : head_dim;
    CompressorWeights out;
    out.kv = reader.matrix(names("wkv.weight", "kv_proj.weight"), width, hidden);
    out.gate = reader.matrix(names("wgate.weight", "gate_proj.weight"), width, hidden);
    out.ape = reader.table(names("ape", "position_bias"), ratio, width);
    out.norm = reader.vector(names("norm.weight", "kv_norm.weight"), head_dim);
    return out;
}

HybridIndexerWeights read_indexer_weights(WeightReader& reader, const Spelling& spelling,
                                          const AttentionConfig& config, int64_t ratio) {
    const CommonConfig& common = config.common;
    const IndexerConfig& indexer = *config.indexer;
    HybridIndexerWeights out;
    out.q_b = reader.matrix(spelling.names("indexer.wq_b.weight", {"compressor.indexer.q_b_proj.weight"}),
                            indexer.heads * indexer.head_dim, common.q_lora_rank);
    out.head_weights = reader.matrix(
        spelling.names("indexer.weights_proj.weight", {"compressor.indexer.scorer.weights_proj.weight",
                                                       "compressor.indexer.weights_proj.weight"}),
        indexer.heads, common.hidden_size);
    out.compressor = read_compressor(reader, spelling, true, ratio, indexer.head_dim, common.hidden_size);
    return out;
}

// V4.1 has no ape, no overlap, and a gate only for pools of two tokens. Checkpoints for fused kernels store
// wkv and wgate as one tensor.
CompressorWeights read_shared_compressor(WeightReader& reader, const Spelling& at, int64_t ratio,
                                         int64_t width, int64_t hidden) {
    CompressorWeights out;
    const std::string joint = at.attention + "compressor.wkv_gate.weight";
    if (ratio == 2 && reader.has(joint)) {
        out.kv = out.gate = reader.matrix({joint}, 2 * width, hidden);
        if (present(out.kv.view)) {
            out.kv.view = slice(out.kv.view, 0, 0, width);
            out.gate.view = slice(out.gate.view, 0, width, 2 * width);
        }
    } else {
        out.kv = reader.matrix(at.names("compressor.wkv.weight", {"compressor.wkv.weight"}), width, hidden);
        if (ratio == 2)
            out.gate = reader.matrix(at.names("compressor.wgate.weight", {"compressor.wgate.weight"}), width,
                                     hidden);
    }
    out.norm = reader.vector(at.names("compressor.norm.weight", {"compressor.norm.weight"}), width);
    return out;
}

HybridIndexerWeights read_shared_indexer(WeightReader& reader, const Spelling& at,
                                         const AttentionConfig& config, bool makes_keys) {
    const CommonConfig& common = config.common;
    const IndexerConfig& indexer = *config.indexer;
    const auto names = [&](const char* name) { return at.names(name, {name}); };
    HybridIndexerWeights out;
    out.q_b =
        reader.matrix(names("indexer.wq_b.weight"), indexer.heads * indexer.head_dim, common.q_lora_rank);
    out.head_weights = reader.matrix(names("indexer.weights_proj.weight"), indexer.heads, common.hidden_size);
    if (!makes_keys) return out;
    out.k = reader.matrix(names("indexer.wk.weight"), indexer.head_dim, config.hybrid->head_dim);
    out.k_norm = reader.vector(names("indexer.k_norm.weight"), indexer.head_dim);
    return out;
}

}  // namespace

Tensor HybridWeights::out_a_groups(const AttentionConfig& config) const {
    const HybridConfig& hybrid = *config.hybrid;
    return reshape(out_a.view, {hybrid.o_groups, hybrid.o_lora_rank,
                                config.common.heads / hybrid.o_groups * hybrid.head_dim});
}

HybridWeights load_hybrid_weights(const Checkpoint& checkpoint, const AttentionConfig& config, int64_t layer,
                                  const WeightOptions& options) {
    SMLA_CHECK(config.hybrid, "config.model_type", config.common.model_type, "deepseek_v4 or deepseek_v41");
    const CommonConfig& common = config.common;
    const HybridConfig& hybrid = *config.hybrid;
    const LayerKind kind = config.layer_kind(layer);
    const int64_t ratio = config.compress_ratio(layer), heads = common.heads, hidden = common.hidden_size;
    const int64_t out_rows = hybrid.o_groups * hybrid.o_lora_rank;
    WeightReader reader(checkpoint, config, layer, options);
    const Spelling at = find_spelling(reader, config, layer);

    HybridWeights out;
    out.input_norm = reader.optional_vector(
        {at.block + (at.original ? "attn_norm.weight" : "input_layernorm.weight")}, hidden);
    out.q_a = reader.matrix(at.names("wq_a.weight", {"q_a_proj.weight"}), common.q_lora_rank, hidden);
    out.q_norm = reader.vector(at.names("q_norm.weight", {"q_a_norm.weight"}), common.q_lora_rank);
    out.q_b = reader.matrix(at.names("wq_b.weight", {"q_b_proj.weight"}), heads * hybrid.head_dim,
                            common.q_lora_rank);
    out.kv = reader.matrix(at.names("wkv.weight", {"kv_proj.weight"}), hybrid.head_dim, hidden);
    // transformers 5.17 saves kv_norm.weight as norm.weight in DeepSeek's spelling.
    std::vector<std::string> kv_norm = at.names("kv_norm.weight", {"kv_norm.weight"});
    if (at.original) kv_norm.push_back(at.attention + "norm.weight");
    out.kv_norm = reader.vector(kv_norm, hybrid.head_dim);
    out.sink = reader.logits(at.names("attn_sink", {"sinks"}), heads);
    out.out_a = reader.matrix(at.names("wo_a.weight", {"o_a_proj.weight"}), out_rows,
                              heads / hybrid.o_groups * hybrid.head_dim);
    out.out_b = reader.matrix(at.names("wo_b.weight", {"o_b_proj.weight"}), hidden, out_rows);
    if (kind == LayerKind::shared_sparse) {
        const bool writes = config.writes_entries(layer);
        if (writes) out.compressor = read_shared_compressor(reader, at, ratio, hybrid.head_dim, hidden);
        if (config.selects(layer)) out.indexer = read_shared_indexer(reader, at, config, writes);
    } else if (kind != LayerKind::sliding)
        out.compressor = read_compressor(reader, at, false, ratio, hybrid.head_dim, hidden);
    if (kind == LayerKind::compressed_sparse) out.indexer = read_indexer_weights(reader, at, config, ratio);
    reader.throw_if_any();
    return out;
}

}  // namespace smla
