#include "model/config_parts.h"

#include <cmath>

namespace smla {

namespace {

constexpr int64_t kSparseRatio = 4;  // overlap and indexer require this ratio
constexpr int64_t kMaxRatio = 4096;

int64_t read_ratio(const ObjectReader& reader, const HybridConfig& hybrid, const Json& value,
                   const std::string& name) {
    if (hybrid.sharing) return reader.integer_of(value, name, 0, 2);
    const int64_t ratio = reader.integer_of(value, name, 0, kMaxRatio);
    if (ratio == 1)
        reader.add(name, "1", "0 (no compression), 4 (sparse), or another ratio of at least 2 (heavy)");
    return ratio;
}

// Reads the layer_types of transformers, a name per layer; compress_rates has the ratio of each name.
void read_layer_types(const ObjectReader& reader, const Json& types, HybridConfig& hybrid) {
    int64_t sparse = kSparseRatio, heavy = 128;
    if (const std::optional<ObjectReader> rates = reader.object("compress_rates")) {
        sparse = rates->integer("compressed_sparse_attention", kSparseRatio, kSparseRatio, kSparseRatio);
        heavy = rates->integer("heavily_compressed_attention", 2, kMaxRatio, 128);
        if (heavy == kSparseRatio)
            rates->add("heavily_compressed_attention", text(heavy),
                       "a ratio other than 4, which is the ratio of sparse layers");
    }
    for (size_t i = 0; i < types.size(); ++i) {
        const Json& type = types[i];
        int64_t ratio = 0;
        if (is_string(type, "compressed_sparse_attention")) ratio = sparse;
        else if (is_string(type, "heavily_compressed_attention")) ratio = heavy;
        else if (!is_string(type, "sliding_attention"))
            reader.add(text("layer_types[", i, "]"), json_text(type),
                       "sliding_attention, compressed_sparse_attention or heavily_compressed_attention");
        hybrid.compress_ratios.push_back(ratio);
    }
}

void read_ratios(const ObjectReader& reader, CommonConfig& common, HybridConfig& hybrid) {
    const char* name = "compress_ratios";
    if (const Json* ratios = read_layer_list(reader, name)) {
        for (size_t i = 0; i < ratios->size(); ++i)
            hybrid.compress_ratios.push_back(
                read_ratio(reader, hybrid, (*ratios)[i], text(name, "[", i, "]")));
    } else if (const Json* types = hybrid.sharing ? nullptr : read_layer_list(reader, "layer_types")) {
        name = "layer_types";
        read_layer_types(reader, *types, hybrid);
    } else if (const Json* ratio = hybrid.sharing ? nullptr : reader.find("compress_ratio")) {
        hybrid.uniform_ratio = read_ratio(reader, hybrid, *ratio, "compress_ratio");
        return;
    } else {
        if (reader.good({name, "layer_types"}))
            reader.add(name, "absent", "a list with the ratio of each layer (or layer_types)");
        return;
    }
    const int64_t given = int64_t(hybrid.compress_ratios.size());
    if (common.layers == 0) common.layers = given;
    if (given < common.layers && !hybrid.sharing)  // layers past V4.1's list are sliding
        reader.add(name, text(given, " layers"), text("at least ", common.layers, " (num_hidden_layers)"));
    common.mtp_layers = std::max(common.mtp_layers, given - common.layers);  // the list includes MTP layers
}

// Returns qk_rope_head_dim, or a fraction of head_dim from any place where transformers has stored it.
int64_t read_rope_dim(const ObjectReader& reader, int64_t head_dim) {
    int64_t dim = 0;
    if (reader.has("qk_rope_head_dim")) {
        dim = reader.integer("qk_rope_head_dim", 2, kMaxHeadDim);
    } else {
        std::optional<ObjectReader> at = reader;
        if (!reader.has("partial_rotary_factor")) at = reader.object("rope_parameters");
        if (at && !at->has("partial_rotary_factor")) at = at->object("main");
        if (!at || !at->has("partial_rotary_factor")) {
            reader.add("qk_rope_head_dim", "absent",
                       text("an integer from 2 to ", kMaxHeadDim, ", or partial_rotary_factor"));
            return 2;
        }
        const double exact = at->number("partial_rotary_factor", 1e-3, 1) * double(head_dim);
        dim = std::llround(exact);
        if (std::fabs(exact - double(dim)) > 1e-6 || dim < 2) {
            at->add("partial_rotary_factor", text(exact / double(head_dim)),
                    text("a fraction that gives a whole number of the ", head_dim, " channels of head_dim"));
            return 2;
        }
    }
    if ((dim % 2 != 0 || dim > head_dim) && reader.good({"qk_rope_head_dim", "head_dim"}))
        reader.add("qk_rope_head_dim", text(dim), text("an even number up to ", head_dim, " (head_dim)"));
    return dim;
}

void read_ropes(const ObjectReader& reader, HybridConfig& hybrid) {
    hybrid.rope.theta = reader.number("rope_theta", kMinTheta, kMaxTheta, hybrid.rope.theta);
    const std::optional<ObjectReader> nested = reader.object("rope_parameters");
    const std::optional<ObjectReader> main = nested ? nested->object("main") : std::nullopt;
    const std::optional<ObjectReader> compress = nested ? nested->object("compress") : std::nullopt;
    const bool flat_theta = reader.has("compress_rope_theta") || !compress || !compress->has("rope_theta");
    if (flat_theta) hybrid.compress_rope.theta = reader.number("compress_rope_theta", kMinTheta, kMaxTheta);
    if (nested) {
        hybrid.rope.theta = nested->number("rope_theta", kMinTheta, kMaxTheta, hybrid.rope.theta);
        if (main) read_rope(*main, false, hybrid.rope);
        if (compress) read_rope(*compress, false, hybrid.compress_rope);
        // Without attention_factor in this form, transformers scales rotated channels.
        if (main && compress && hybrid.compress_rope.yarn && !compress->has("attention_factor"))
            compress->add("attention_factor", "absent", "1");
    }
    // The flat object has the scaling and theta of compressing layers only, not the main theta.
    if (!compress)
        for (const char* name : {"rope_scaling", "rope_parameters"})
            if (const std::optional<ObjectReader> flat = reader.object(name)) {
                const double theta = hybrid.compress_rope.theta;
                read_rope(*flat, false, hybrid.compress_rope);
                hybrid.compress_rope.theta = theta;
            }
}

bool has_ratio(const HybridConfig& hybrid, int64_t ratio) {
    if (hybrid.uniform_ratio) return *hybrid.uniform_ratio == ratio;
    for (const int64_t each : hybrid.compress_ratios)
        if (each == ratio) return true;
    return false;
}

std::vector<int64_t> read_layers(const ObjectReader& reader, const char* name) {
    const Json* list = reader.list(name);
    if (!list && reader.good({name})) reader.add(name, "absent", "a list of layers");
    std::vector<int64_t> out;
    for (size_t i = 0; list && i < list->size(); ++i) {
        const std::string at = text(name, "[", i, "]");
        const int64_t layer = reader.integer_of((*list)[i], at, 0, kMaxLayers - 1);
        if (!out.empty() && layer <= out.back()) reader.add(at, text(layer), text("more than ", out.back()));
        else out.push_back(layer);
    }
    return out;
}

SharingConfig read_sharing(const ObjectReader& reader) {
    SharingConfig sharing;
    sharing.entry_layers = read_layers(reader, "kv_source_layer_ids");
    sharing.index_layers = read_layers(reader, "index_source_layer_ids");
    sharing.candidate_layer = reader.integer("candidate_source_layer_id", -1, kMaxLayers - 1, -1);
    if (sharing.candidate_layer < 0) return sharing;
    sharing.candidate_blocks = reader.integer("candidate_topk_blocks", 1, kMaxTopk);
    sharing.candidate_block_size = reader.integer("candidate_block_size", 1, kMaxTopk);
    return sharing;
}

// Returns the last of the ascending layers that is not after `layer`; -1 if there is none.
int64_t latest(const std::vector<int64_t>& layers, int64_t layer) {
    int64_t found = -1;
    for (const int64_t each : layers)
        if (each <= layer) found = each;
    return found;
}

bool is_in(const std::vector<int64_t>& layers, int64_t layer) { return latest(layers, layer) == layer; }

}  // namespace

void check_sharing(const ObjectReader& reader, const HybridConfig& hybrid) {
    const SharingConfig& sharing = *hybrid.sharing;
    const auto ratio = [&](int64_t layer) {
        return layer < int64_t(hybrid.compress_ratios.size()) ? hybrid.compress_ratios[size_t(layer)] : 0;
    };
    const char* const entries = "kv_source_layer_ids";
    const char* const index = "index_source_layer_ids";
    for (int64_t layer = 0; layer < int64_t(hybrid.compress_ratios.size()); ++layer) {
        if (ratio(layer) == 0) continue;
        const int64_t wrote = latest(sharing.entry_layers, layer),
                      chose = latest(sharing.index_layers, layer);
        if (wrote < 0 || ratio(wrote) != ratio(layer))
            return reader.add(entries, wrote < 0 ? text("none up to layer ", layer) : text(wrote),
                              text("a layer with ratio ", ratio(layer), " at or before layer ", layer));
        if (chose < wrote)
            return reader.add(index, chose < 0 ? text("none up to layer ", layer) : text(chose),
                              text("a layer from ", wrote, " to ", layer, ", because layer ", layer,
                                   " reads the entries of layer ", wrote));
    }
    for (const auto& [name, layers] :
         {std::pair{entries, &sharing.entry_layers}, {index, &sharing.index_layers}})
        for (const int64_t layer : *layers)
            if (ratio(layer) == 0)
                return reader.add(name, text(layer), "only layers whose compress_ratios are 1 or 2");
    for (const int64_t layer : sharing.entry_layers)
        if (!is_in(sharing.index_layers, layer))
            return reader.add(index, text("a list without layer ", layer),
                              "a list with all of kv_source_layer_ids");
    if (sharing.candidate_layer < 0) return;
    const char* const candidate = "candidate_source_layer_id";
    if (!is_in(sharing.index_layers, sharing.candidate_layer))
        return reader.add(candidate, text(sharing.candidate_layer), "-1, or one of index_source_layer_ids");
    for (const int64_t layer : sharing.index_layers)
        if (layer > sharing.candidate_layer &&
            latest(sharing.entry_layers, layer) != latest(sharing.entry_layers, sharing.candidate_layer))
            return reader.add(candidate, text(sharing.candidate_layer),
                              text("a layer that reads the same entries as layer ", layer));
}

void read_hybrid(const ObjectReader& reader, AttentionConfig& config) {
    HybridConfig hybrid;
    hybrid.head_dim = reader.integer("head_dim", 2, kMaxHeadDim);
    hybrid.window = reader.integer(
        reader.has("window_size") && !reader.has("sliding_window") ? "window_size" : "sliding_window", 1,
        kMaxTopk);
    hybrid.o_groups = reader.integer("o_groups", 1, kMaxHeads);
    hybrid.o_lora_rank = reader.integer("o_lora_rank", 1, kMaxRank);
    if (config.common.heads % hybrid.o_groups != 0 && reader.good({"num_attention_heads", "o_groups"}))
        reader.add("o_groups", text(hybrid.o_groups),
                   text("a divisor of ", config.common.heads, " (num_attention_heads)"));
    config.common.rope_dim = read_rope_dim(reader, hybrid.head_dim);
    read_ropes(reader, hybrid);
    if (config.common.model_type == "deepseek_v41") hybrid.sharing = read_sharing(reader);
    read_ratios(reader, config.common, hybrid);
    const bool reads_entries = hybrid.sharing && (has_ratio(hybrid, 1) || has_ratio(hybrid, 2));
    if (has_ratio(hybrid, kSparseRatio) || reads_entries || reader.has("index_topk")) {
        config.indexer = read_indexer(reader);
        if (config.indexer->head_dim < config.common.rope_dim &&
            reader.good({"index_head_dim", "qk_rope_head_dim"}))
            reader.add("index_head_dim", text(config.indexer->head_dim),
                       text("at least ", config.common.rope_dim, " (qk_rope_head_dim)"));
    }
    config.hybrid = hybrid;
}

}  // namespace smla
