#include "model/config.h"

#include "core/status.h"
#include "model/config_parts.h"
#include "model/mapped_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>

namespace smla {

namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr double kMinEps = 1e-30, kMaxEps = 1;

struct KnownModel {
    std::string_view type;
    std::string_view architecture;  // prefix of its class names in `architectures`
    ModelFamily family;
    bool latent_eps_is_rms_eps;
    int64_t weight_block = 128;  // default rows and columns per scale of fp8 weights
};
// GLM-5.x: the config has rms_norm_eps 1e-5, which vLLM and SGLang also use in the latent norms; transformers
// uses 1e-6 there. DeepSeek: 1e-6 everywhere. `latent_norm_eps` overrides both.
constexpr KnownModel kModels[] = {{"deepseek_v32", "DeepseekV32For", ModelFamily::dsa, false},
                                  {"glm_moe_dsa", "GlmMoeDsaFor", ModelFamily::dsa, true},
                                  {"glm5_next", "Glm5NextFor", ModelFamily::dsa, true},
                                  {"deepseek_v4", "DeepseekV4For", ModelFamily::hybrid, false},
                                  {"deepseek_v41", "DeepseekV41For", ModelFamily::hybrid, true, 32}};

const KnownModel* find_model(std::string type) {
    if (type.ends_with("_text")) type.resize(type.size() - 5);
    if (type == "glm53_flash") type = "glm5_next";  // another name of GLM-5.3-Flash
    for (const KnownModel& each : kModels)
        if (each.type == type) return &each;
    return nullptr;
}

const KnownModel* find_model_of_class(const ObjectReader& reader) {
    const Json* const classes = reader.list("architectures");
    for (size_t i = 0; classes && i < classes->size(); ++i)
        for (const KnownModel& each : kModels)
            if ((*classes)[i].is_string() &&
                (*classes)[i].get_ref<const std::string&>().starts_with(each.architecture))
                return &each;
    return nullptr;
}

// Returns the language model's config in the config of a multimodal model such as V4.1; empty if it is flat.
std::optional<ObjectReader> language_model(const ObjectReader& top) {
    for (const char* name : {"text_config", "language_config", "llm_config"})
        if (!top.has("q_lora_rank") && top.has(name)) return top.object(name);
    return {};
}

const KnownModel* read_model(const ObjectReader& top, const std::optional<ObjectReader>& inner) {
    std::vector<const ObjectReader*> objects{&top};
    if (inner) objects.push_back(&*inner);
    std::string known, got = "absent";
    for (const KnownModel& each : kModels) known += (known.empty() ? "" : ", ") + std::string(each.type);
    bool v3 = false;
    for (const ObjectReader* each : objects) {
        const std::optional<std::string> type = each->string("model_type");
        if (!type) continue;
        if (const KnownModel* model = find_model(*type)) return model;
        if (got == "absent") got = in_quotes(*type);
        v3 = *type == "deepseek_v3";
    }
    for (const ObjectReader* each : objects)
        if (const KnownModel* model = find_model_of_class(*each)) return model;
    // V3.2 under the name V3, for tools that only support V3. vLLM and SGLang also detect it by index_topk.
    if (v3 && objects.back()->has("index_topk")) return find_model("deepseek_v32");
    if (top.good({"model_type"})) top.add("model_type", got, text("one of ", known));
    return nullptr;
}

void read_common(const ObjectReader& reader, const KnownModel& model, CommonConfig& common) {
    common.model_type = model.type;
    common.family = model.family;
    common.weight_block_rows = common.weight_block_columns = model.weight_block;
    common.hidden_size = reader.integer("hidden_size", 1, kMaxHidden);
    common.layers = reader.integer("num_hidden_layers", 1, kMaxLayers, 0);
    common.mtp_layers = reader.integer("num_nextn_predict_layers", 0, kMaxLayers, 0);
    common.heads = reader.integer("num_attention_heads", 1, kMaxHeads);
    common.q_lora_rank = reader.integer("q_lora_rank", 1, kMaxRank);
    common.rms_norm_eps = reader.number("rms_norm_eps", kMinEps, kMaxEps, 1e-6);
    const double latent = model.latent_eps_is_rms_eps ? common.rms_norm_eps : 1e-6;
    common.latent_norm_eps = reader.number("latent_norm_eps", kMinEps, kMaxEps, latent);
    if (model.family == ModelFamily::hybrid && reader.has("latent_norm_eps") &&
        common.latent_norm_eps != common.rms_norm_eps)
        reader.add("latent_norm_eps", text(common.latent_norm_eps),
                   text(common.rms_norm_eps, " (rms_norm_eps, which all norms of this model use)"));
    if (reader.boolean("attention_bias", false))
        reader.add("attention_bias", "true", "false (projections with bias are not supported)");
}

void read_quantization(const ObjectReader& reader, CommonConfig& common) {
    // quant_method is ignored, because it may apply only to experts. Stored dtypes and scales determine how a
    // tensor is read.
    const std::optional<ObjectReader> quantization = reader.object("quantization_config");
    const Json* const block = quantization ? quantization->list("weight_block_size") : nullptr;
    if (!block) return;
    if (block->size() != 2)
        return quantization->add("weight_block_size", json_text(*block),
                                 "a list of two integers (rows, columns)");
    common.weight_block_rows = quantization->integer_of((*block)[0], "weight_block_size[0]", 1, kMaxRank);
    common.weight_block_columns = quantization->integer_of((*block)[1], "weight_block_size[1]", 1, kMaxRank);
}

void check_layer(const CommonConfig& common, int64_t layer) {
    const int64_t count = common.layers == 0 ? kMaxLayers : common.layers + common.mtp_layers;
    SMLA_CHECK(layer >= 0 && layer < count, "layer", layer, text("0 to ", count - 1));
}

}  // namespace

const Json* read_layer_list(const ObjectReader& reader, const char* name) {
    const Json* list = reader.list(name);
    if (!list) return nullptr;
    // Rejects an empty list, because as an absent list it would give layers a kind that is not in the config.
    if (list->empty()) reader.add(name, json_text(*list), "a list with an entry for each layer");
    else if (list->size() > size_t(kMaxLayers))
        reader.add(name, text(list->size(), " layers"), text("at most ", kMaxLayers));
    else return list;
    return nullptr;
}

const char* layer_kind_name(LayerKind kind) {
    switch (kind) {
        case LayerKind::dsa: return "dsa";
        case LayerKind::dsa_shared: return "dsa_shared";
        case LayerKind::sliding: return "sliding";
        case LayerKind::compressed_sparse: return "compressed_sparse";
        case LayerKind::heavily_compressed: return "heavily_compressed";
        case LayerKind::shared_sparse: return "shared_sparse";
        case LayerKind::linear: return "linear";
    }
    return "unknown";
}

double IndexerConfig::weight_factor() const {
    return 1 / std::sqrt(double(heads)) / std::sqrt(double(head_dim));
}

int64_t AttentionConfig::compress_ratio(int64_t layer) const {
    check_layer(common, layer);
    if (dsa) return layer_kind(layer) == LayerKind::linear ? 0 : dsa->pool;
    if (hybrid->uniform_ratio) return *hybrid->uniform_ratio;
    return layer < int64_t(hybrid->compress_ratios.size()) ? hybrid->compress_ratios[size_t(layer)] : 0;
}

LayerKind AttentionConfig::layer_kind(int64_t layer) const {
    check_layer(common, layer);
    if (hybrid && hybrid->sharing) return sharing_layer_kind(compress_ratio(layer));
    if (hybrid) return hybrid_layer_kind(compress_ratio(layer));
    if (layer < int64_t(dsa->linear.size()) && dsa->linear[size_t(layer)]) return LayerKind::linear;
    // Sharing applies to the main stack only. Checkpoints contain an indexer for each MTP layer, and vLLM and
    // SGLang run it.
    if (common.layers != 0 && layer >= common.layers) return LayerKind::dsa;
    if (layer < int64_t(dsa->has_indexer.size()))
        return dsa->has_indexer[size_t(layer)] ? LayerKind::dsa : LayerKind::dsa_shared;
    if (!dsa->has_indexer.empty()) return LayerKind::dsa;
    const int64_t since = std::max<int64_t>(layer - dsa->index_offset + 1, 0);
    return since % dsa->index_frequency == 0 ? LayerKind::dsa : LayerKind::dsa_shared;
}

LayerSources AttentionConfig::sources(int64_t layer) const {
    const auto latest = [layer](const std::vector<int64_t>& layers) {
        return *std::prev(std::upper_bound(layers.begin(), layers.end(), layer));
    };
    LayerSources out;
    switch (layer_kind(layer)) {
        case LayerKind::sliding:
        case LayerKind::linear: break;
        case LayerKind::heavily_compressed: out.entries = layer; break;
        case LayerKind::compressed_sparse: out.entries = out.selection = layer; break;
        case LayerKind::dsa: out.selection = layer; break;
        case LayerKind::dsa_shared:
            out.selection = layer;
            while (layer_kind(out.selection) != LayerKind::dsa) --out.selection;
            break;
        case LayerKind::shared_sparse: {
            const SharingConfig& sharing = *hybrid->sharing;
            out.entries = latest(sharing.entry_layers);
            out.selection = latest(sharing.index_layers);
            if (out.selection == layer && sharing.candidate_layer <= layer)
                out.candidates = sharing.candidate_layer;
        }
    }
    return out;
}

void AttentionConfig::check_computed(int64_t layer) const {
    if (layer_kind(layer) != LayerKind::linear) return;
    constexpr int kNamed = 8;
    std::string others;
    int named = 0;
    for (int64_t each = 0; each < common.layers && named <= kNamed; ++each) {
        if (layer_kind(each) == LayerKind::linear) continue;
        others += (named ? ", " : "") + (named < kNamed ? text(each) : std::string("..."));
        ++named;
    }
    fail(SMLA_UNSUPPORTED, "layer", text(layer, ", a linear attention (KDA) layer"),
         "a sparse attention layer: " + others);
}

const RopeParameters& AttentionConfig::rope(int64_t layer) const {
    if (dsa) {
        check_layer(common, layer);
        return dsa->rope;
    }
    return compress_ratio(layer) == 0 ? hybrid->rope : hybrid->compress_rope;
}

int64_t AttentionConfig::qk_head_dim() const {
    return dsa ? dsa->qk_nope_head_dim + common.rope_dim : hybrid->head_dim;
}

double AttentionConfig::softmax_scale() const {
    return dsa ? attention_scale(qk_head_dim(), dsa->rope) : attention_scale(qk_head_dim(), {});
}

AttentionConfig parse_config(std::string_view json, const std::string& source) {
    const JsonDocument object = parse_json(quote_constants(json), source);
    if (!object.is_object()) fail(SMLA_DATA_ERROR, source, json_text(object), "an object");
    Findings findings(source);
    const ObjectReader top(object, findings);
    const std::optional<ObjectReader> inner = language_model(top);
    const ObjectReader& reader = inner ? *inner : top;
    AttentionConfig config;
    if (const KnownModel* model = read_model(top, inner)) {
        read_common(reader, *model, config.common);
        if (model->family == ModelFamily::dsa) read_dsa(reader, config);
        else read_hybrid(reader, config);
        read_quantization(top.has("quantization_config") ? top : reader, config.common);
        if (findings.empty() && config.dsa) check_ramp(reader, config.common.rope_dim, config.dsa->rope);
        if (findings.empty() && config.hybrid && config.hybrid->sharing)
            check_sharing(reader, *config.hybrid);
        if (findings.empty() && config.hybrid) {
            check_ramp(reader, config.common.rope_dim, config.hybrid->rope);
            check_ramp(reader, config.common.rope_dim, config.hybrid->compress_rope);
        }
    }
    findings.throw_if_any();
    return config;
}

AttentionConfig load_config(const std::string& path) {
    std::error_code error;
    const std::filesystem::path at(path);
    const std::filesystem::path file = std::filesystem::is_directory(at, error) ? at / "config.json" : at;
    return parse_config(read_text_file(file.string(), kMaxConfigBytes), file.filename().string());
}

}  // namespace smla
