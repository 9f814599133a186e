// A model's attention parameters, read from a Hugging Face config.json.
#pragma once

#include "core/layer_kind.h"
#include "model/rope_tables.h"

#include <smla/stages_linear.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace smla {

constexpr int64_t kMaxLayers = 10000;

enum class ModelFamily {
    dsa,    // deepseek_v32, glm_moe_dsa, glm5_next: latent attention over keys that an indexer selects
    hybrid  // deepseek_v4, deepseek_v41: sliding window and compressed entries in one softmax
};

const char* layer_kind_name(LayerKind kind);

struct CommonConfig {
    std::string model_type;  // type of the language model, as in transformers
    ModelFamily family = ModelFamily::dsa;
    int64_t hidden_size = 0;
    int64_t layers = 0;      // layers of the main stack; 0: unknown, all are accepted
    int64_t mtp_layers = 0;  // multi-token prediction: layers numbered after the main stack
    int64_t heads = 0;
    int64_t q_lora_rank = 0;
    int64_t rope_dim = 0;  // rotated channels of attention and of the indexer
    double rms_norm_eps = 0;
    double latent_norm_eps = 0;                                   // epsilon of the q and kv latents' norms
    int64_t weight_block_rows = 128, weight_block_columns = 128;  // of fp8 weight scales
};

struct IndexerConfig {
    int64_t heads = 0, head_dim = 0;
    int64_t topk = 0;  // keys selected per token: tokens, entries (V4) or pools (GLM-5.3)
    smla_rope_style rope_style = SMLA_ROPE_INTERLEAVED;
    double key_norm_eps = 1e-6;    // LayerNorm of the DSA key; not in configs, 1e-6 in all published models
    double weight_factor() const;  // heads^-0.5 head_dim^-0.5
};

struct DsaConfig {
    int64_t kv_lora_rank = 0, qk_nope_head_dim = 0, v_head_dim = 0;
    RopeParameters rope;
    int64_t pool = 0;               // GLM-5.3: tokens per index key; 0: one key per token
    std::vector<bool> linear;       // GLM-5.3: whether a layer has linear attention
    std::vector<bool> has_indexer;  // per layer; after its end, index_frequency applies
    int64_t index_frequency = 1, index_offset = 2;
};

// Numbers of the layers whose results a layer reads: its own if it computes them, -1 for none.
struct LayerSources {
    int64_t entries = -1;     // layer that writes the compressed entries and their index keys
    int64_t selection = -1;   // layer that selects the keys to attend to
    int64_t candidates = -1;  // layer that selects the blocks which this layer's indexer searches
};

// V4.1: layers that write entries and select keys for later layers.
struct SharingConfig {
    std::vector<int64_t> entry_layers, index_layers;  // ascending
    int64_t candidate_layer = -1;                     // selects `candidate_blocks` blocks; -1: none
    int64_t candidate_blocks = 0, candidate_block_size = 0;
};

struct HybridConfig {
    int64_t head_dim = 0, window = 0, o_groups = 0, o_lora_rank = 0;
    RopeParameters rope;                   // of layers without compression
    RopeParameters compress_rope;          // of layers with it
    std::vector<int64_t> compress_ratios;  // per layer; 0: no compression
    std::optional<int64_t> uniform_ratio;  // ratio of all layers, if the config has one
    std::optional<SharingConfig> sharing;  // V4.1
};

// Exactly one of dsa and hybrid has a value, depending on common.family.
struct AttentionConfig {
    CommonConfig common;
    std::optional<IndexerConfig> indexer;  // absent in some hybrid models
    std::optional<DsaConfig> dsa;
    std::optional<HybridConfig> hybrid;

    // These functions throw SMLA_INVALID_ARGUMENT for a layer that the model does not have.
    LayerKind layer_kind(int64_t layer) const;
    int64_t compress_ratio(int64_t layer) const;  // tokens per entry, or per pool of GLM-5.3; 0: none
    // Throws SMLA_UNSUPPORTED for a layer of linear attention.
    void check_computed(int64_t layer) const;
    // Returns the sources of a layer: of entries only in V4 and V4.1, of candidates only in V4.1, of
    // selections also in V3.2 and GLM.
    LayerSources sources(int64_t layer) const;
    bool selects(int64_t layer) const { return sources(layer).selection == layer; }  // has an indexer
    bool writes_entries(int64_t layer) const { return sources(layer).entries == layer; }
    int64_t index_source_layer(int64_t layer) const { return sources(layer).selection; }
    const RopeParameters& rope(int64_t layer) const;

    int64_t qk_head_dim() const;
    double softmax_scale() const;
};

// Parses a config. One error, which names `source`, reports everything that is wrong.
AttentionConfig parse_config(std::string_view json, const std::string& source);

// Parses a config.json; `path` is the file or its folder.
AttentionConfig load_config(const std::string& path);

}  // namespace smla
