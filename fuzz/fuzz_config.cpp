// Any text as a config.json: either one Error that names it, or a config whose every question has a sane
// answer.
#include "fuzz.h"
#include "json_mutator.h"
#include "model/config.h"

#include <algorithm>
#include <cmath>

namespace {

using smla::AttentionConfig;
using smla::LayerKind;

void check_rope(const AttentionConfig& config, int64_t layer) {
    const std::vector<double> table = smla::rope_frequencies(config.common.rope_dim, config.rope(layer));
    FUZZ_ASSERT(int64_t(table.size()) * 2 == config.common.rope_dim);
    for (const double frequency : table) FUZZ_ASSERT(frequency > 0 && frequency <= 1);
}

// A layer's tokens per entry, or per pool.
void check_ratio(const AttentionConfig& config, LayerKind kind, int64_t ratio) {
    switch (kind) {
        case LayerKind::sliding:
        case LayerKind::linear: FUZZ_ASSERT(ratio == 0); return;
        case LayerKind::compressed_sparse: FUZZ_ASSERT(ratio == 4); return;
        case LayerKind::heavily_compressed: FUZZ_ASSERT(ratio > 0 && ratio != 4); return;
        case LayerKind::shared_sparse: FUZZ_ASSERT(ratio == 1 || ratio == 2); return;
        case LayerKind::dsa:
        case LayerKind::dsa_shared: FUZZ_ASSERT(ratio == config.dsa->pool && ratio >= 0); return;
    }
    FUZZ_ASSERT(!"a kind of layer");
}

// What a layer reads was made by itself or a layer before it.
void check_sources(const AttentionConfig& config, int64_t layer, LayerKind kind) {
    const smla::LayerSources sources = config.sources(layer);
    const bool selects = smla::reads_selection(kind);
    FUZZ_ASSERT(selects == (sources.selection >= 0) && sources.selection <= layer);
    FUZZ_ASSERT(!selects || (config.indexer.has_value() && config.selects(sources.selection)));
    const bool entries = config.hybrid && kind != LayerKind::sliding;
    FUZZ_ASSERT(entries == (sources.entries >= 0) && sources.entries <= layer);
    FUZZ_ASSERT(!entries || config.writes_entries(sources.entries));
    FUZZ_ASSERT(sources.candidates <= layer);
    FUZZ_ASSERT(sources.candidates < 0 || (kind == LayerKind::shared_sparse && config.selects(layer) &&
                                           config.selects(sources.candidates)));
}

void check_layer(const AttentionConfig& config, int64_t layer) {
    const LayerKind kind = config.layer_kind(layer);
    FUZZ_ASSERT(config.dsa.has_value() ==
                (kind == LayerKind::dsa || kind == LayerKind::dsa_shared || kind == LayerKind::linear));
    check_ratio(config, kind, config.compress_ratio(layer));
    check_sources(config, layer, kind);
    check_rope(config, layer);
}

void check_config(const AttentionConfig& config) {
    FUZZ_ASSERT(config.dsa.has_value() != config.hybrid.has_value());
    FUZZ_ASSERT(config.softmax_scale() > 0 && std::isfinite(config.softmax_scale()));
    FUZZ_ASSERT(config.common.rope_dim % 2 == 0 && config.common.rope_dim <= config.qk_head_dim());
    FUZZ_ASSERT(!config.hybrid || config.common.heads % config.hybrid->o_groups == 0);
    FUZZ_ASSERT(!config.indexer || config.indexer->weight_factor() > 0);
    const int64_t layers = config.common.layers + config.common.mtp_layers;
    for (int64_t layer = 0; layer < std::min<int64_t>(std::max<int64_t>(layers, 1), 100); ++layer)
        check_layer(config, layer);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    return smla::fuzz::mutate_json(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        check_config(smla::parse_config({reinterpret_cast<const char*>(data), size}, "f"));
    } catch (const smla::Error& error) {
        FUZZ_ASSERT(error.status == SMLA_DATA_ERROR && error.field.compare(0, 1, "f") == 0);
        FUZZ_ASSERT(!error.got.empty() && !error.wanted.empty());
    }
    return 0;
}
