#include "model_info.h"

#include "names.h"

#include <algorithm>

namespace smla::cli {

std::string LayerClass::name() const {
    const std::string kind_name = layer_kind_name(kind);
    if (kind == LayerKind::heavily_compressed || kind == LayerKind::dsa || kind == LayerKind::dsa_shared)
        return ratio ? text(kind_name, " ", ratio) : kind_name;
    if (kind != LayerKind::shared_sparse) return kind_name;
    return text(kind_name, " ", ratio, writes ? " (writes, selects)" : selects ? " (selects)" : "");
}

LayerClass layer_class(const AttentionConfig& config, int64_t layer) {
    return {config.layer_kind(layer), config.compress_ratio(layer), layer, 1,
            config.selects(layer),    config.writes_entries(layer)};
}

std::vector<LayerClass> layer_classes(const AttentionConfig& config, int64_t layers) {
    std::vector<LayerClass> out;
    for (int64_t layer = 0; layer < layers; ++layer) {
        const LayerClass one = layer_class(config, layer);
        if (one.kind == LayerKind::linear) continue;
        const auto same = std::find_if(out.begin(), out.end(), [&](const LayerClass& each) {
            return each.kind == one.kind && each.ratio == one.ratio && each.selects == one.selects &&
                   each.writes == one.writes;
        });
        if (same != out.end()) same->count += 1;
        else out.push_back(one);
    }
    return out;
}

CacheChoice choose_caches(const AttentionConfig& config, const std::string& kv_format,
                          const std::string& index_format, int32_t page_tokens) {
    CacheChoice choice;
    choice.page_tokens = page_tokens;
    choice.kv_scale = 1;  // nothing is stored: any scale has the same bytes and kernels
    choice.kv = kv_format == "auto" ? kv_formats_for(config).front() : parse_format("--kv-format", kv_format);
    if (index_format != "auto") choice.index = parse_format("--index-format", index_format);
    else if (config.indexer) choice.index = index_formats_for(config).front();
    return choice;
}

int64_t telling_layer(const AttentionConfig& config) {
    for (const LayerClass& each : layer_classes(config, std::max<int64_t>(config.common.layers, 1)))
        if (each.kind != LayerKind::dsa_shared && reads_selection(each.kind)) return each.first;
    return 0;
}

TokenKeys token_keys(const AttentionConfig& config, const LayerClass& layers, int64_t context) {
    const int64_t topk = config.indexer ? config.indexer->topk : 0;
    if (!config.hybrid) {
        const int64_t pool = std::max<int64_t>(layers.ratio, 1), keys = context / pool;
        return {layers.kind == LayerKind::dsa ? keys : 0, std::min(keys, topk) * pool + context % pool};
    }
    const int64_t window = std::min(context, config.hybrid->window);
    if (layers.ratio == 0) return {0, window};
    const int64_t entries = context / layers.ratio;
    if (layers.kind == LayerKind::heavily_compressed) return {0, window + entries};
    int64_t scored = layers.kind == LayerKind::shared_sparse && !layers.selects ? 0 : entries;
    const LayerSources sources = config.sources(layers.first);
    if (sources.candidates >= 0 && sources.candidates != layers.first)
        scored = std::min(
            scored, config.hybrid->sharing->candidate_blocks * config.hybrid->sharing->candidate_block_size);
    return {scored, window + std::min(entries, topk)};
}

// Returns the operations per token that project V4.1's entries and their index keys.
static double entry_flops(const AttentionConfig& config, const LayerClass& layers) {
    if (!layers.writes) return 0;
    const double width = double(config.hybrid->head_dim), ratio = double(layers.ratio);
    return 2 * width * (ratio * double(config.common.hidden_size) + double(config.indexer->head_dim) / ratio);
}

TokenFlops token_flops(const AttentionConfig& config, const LayerClass& layers, int64_t context) {
    const CommonConfig& common = config.common;
    const TokenKeys keys = token_keys(config, layers, context);
    const double hidden = double(common.hidden_size), heads = double(common.heads),
                 q_rank = double(common.q_lora_rank);
    const bool has_indexer =
        layers.kind == LayerKind::dsa || layers.kind == LayerKind::compressed_sparse || layers.selects;
    const double index_heads = has_indexer ? double(config.indexer->heads) : 0;
    const double index_width = has_indexer ? double(config.indexer->head_dim) : 0;
    TokenFlops out;
    out.project = 2 * (q_rank * hidden + heads * double(config.qk_head_dim()) * q_rank);
    out.project += 2 * index_heads * (index_width * q_rank + hidden);  // index queries, head weights
    out.score = 2 * index_heads * index_width * double(keys.scored);
    if (config.dsa) {
        const double latent = double(config.dsa->kv_lora_rank), rope = double(common.rope_dim),
                     value = double(config.dsa->v_head_dim);
        const double index_rows = layers.ratio ? 2 : 1;  // keys, and of pools their shares
        out.project += 2 * ((latent + rope) * hidden + index_rows * index_width * hidden);
        out.absorb = 2 * heads * double(config.dsa->qk_nope_head_dim) * latent;
        out.attend = 2 * heads * (2 * latent + rope) * double(keys.attended);
        out.up_project = 2 * heads * value * latent;
        out.out_project = 2 * heads * value * hidden;
        return out;
    }
    const HybridConfig& hybrid = *config.hybrid;
    const double width = double(hybrid.head_dim), groups = double(hybrid.o_groups),
                 rank = double(hybrid.o_lora_rank);
    const double overlap =
        layers.ratio == 4 ? 2 : 1;  // channels of the compressor double where windows overlap
    out.project += 2 * width * hidden;
    if (layers.kind == LayerKind::shared_sparse) out.project += entry_flops(config, layers);
    else if (layers.ratio) out.project += 2 * 2 * overlap * (width + index_width) * hidden;
    out.attend = 2 * heads * 2 * width * double(keys.attended);
    out.out_project = 2 * (heads * width * rank + groups * rank * hidden);
    return out;
}

}  // namespace smla::cli
