// Layers of every kind with random weights, in shapes that the golden files do not have: a wide hidden state
// beside small heads, and V4's real ratio of 128.
#pragma once

#include "fixture.h"

#include <unistd.h>

#include <cmath>
#include <deque>
#include <filesystem>
#include <random>

namespace smla::layers_test {

// Layer 0 has an indexer, layer 1 shares its selection.
inline std::string dsa_config(int64_t hidden) {
    return text(R"({"model_type": "glm_moe_dsa", "num_hidden_layers": 2, "num_attention_heads": 2,
        "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 6, "rope_theta": 10000,
        "indexer_types": ["full", "shared"], "hidden_size": )",
                hidden, "}");
}

// GLM-5.3: the same of pools of 4 tokens, without rotation. Layer 0 is linear.
inline std::string pool_config(int64_t hidden) {
    return text(R"({"model_type": "glm5_next", "num_hidden_layers": 3, "num_attention_heads": 2,
        "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 0,
        "v_head_dim": 16, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 24, "index_kpool": 4,
        "layer_types": ["linear_attention", "deepseek_sparse_attention", "deepseek_sparse_attention"],
        "indexer_types": ["full", "full", "shared"], "hidden_size": )",
                hidden, "}");
}

// Layer 0 is sliding, layer 1 of ratio 4, layer 2 of ratio 128.
inline std::string hybrid_config(int64_t hidden) {
    return text(R"({"model_type": "deepseek_v4", "num_hidden_layers": 3, "num_attention_heads": 4,
        "q_lora_rank": 24, "head_dim": 32, "qk_rope_head_dim": 8, "o_groups": 2, "o_lora_rank": 12,
        "sliding_window": 24, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 6,
        "rope_theta": 10000, "compress_rope_theta": 160000, "compress_ratios": [0, 4, 128],
        "hidden_size": )",
                hidden, "}");
}

struct NamedShape {
    std::string name;
    std::vector<int64_t> shape;
};

inline std::vector<NamedShape> dsa_shapes(const AttentionConfig& config, int layer) {
    const CommonConfig& c = config.common;
    const DsaConfig& d = *config.dsa;
    const IndexerConfig& i = *config.indexer;
    const std::string at = text("model.layers.", layer, ".");
    std::vector<NamedShape> out{
        {"input_layernorm.weight", {c.hidden_size}},
        {"self_attn.q_a_proj.weight", {c.q_lora_rank, c.hidden_size}},
        {"self_attn.q_a_layernorm.weight", {c.q_lora_rank}},
        {"self_attn.q_b_proj.weight", {c.heads * config.qk_head_dim(), c.q_lora_rank}},
        {"self_attn.kv_a_proj_with_mqa.weight", {d.kv_lora_rank + c.rope_dim, c.hidden_size}},
        {"self_attn.kv_a_layernorm.weight", {d.kv_lora_rank}},
        {"self_attn.kv_b_proj.weight", {c.heads * (d.qk_nope_head_dim + d.v_head_dim), d.kv_lora_rank}},
        {"self_attn.o_proj.weight", {c.hidden_size, c.heads * d.v_head_dim}}};
    if (config.layer_kind(layer) == LayerKind::dsa)
        out.insert(out.end(), {{"self_attn.indexer.wq_b.weight", {i.heads * i.head_dim, c.q_lora_rank}},
                               {"self_attn.indexer.wk.weight", {i.head_dim, c.hidden_size}},
                               {"self_attn.indexer.k_norm.weight", {i.head_dim}},
                               {"self_attn.indexer.k_norm.bias", {i.head_dim}},
                               {"self_attn.indexer.weights_proj.weight", {i.heads, c.hidden_size}}});
    if (config.layer_kind(layer) == LayerKind::dsa && d.pool)
        out.insert(out.end(), {{"self_attn.indexer.index_kpool_compress_gate", {i.head_dim, c.hidden_size}},
                               {"self_attn.indexer.index_kpool_compress_ape", {d.pool, i.head_dim}}});
    for (NamedShape& each : out) each.name = at + each.name;
    return out;
}

inline std::vector<NamedShape> hybrid_shapes(const AttentionConfig& config, int layer) {
    const CommonConfig& c = config.common;
    const HybridConfig& h = *config.hybrid;
    const LayerKind kind = config.layer_kind(layer);
    const int64_t ratio = config.compress_ratio(layer);
    std::vector<NamedShape> out{
        {"attn_norm.weight", {c.hidden_size}},
        {"attn.wq_a.weight", {c.q_lora_rank, c.hidden_size}},
        {"attn.q_norm.weight", {c.q_lora_rank}},
        {"attn.wq_b.weight", {c.heads * h.head_dim, c.q_lora_rank}},
        {"attn.wkv.weight", {h.head_dim, c.hidden_size}},
        {"attn.kv_norm.weight", {h.head_dim}},
        {"attn.attn_sink", {c.heads}},
        {"attn.wo_a.weight", {h.o_groups * h.o_lora_rank, c.heads / h.o_groups * h.head_dim}},
        {"attn.wo_b.weight", {c.hidden_size, h.o_groups * h.o_lora_rank}}};
    const auto compressor = [&](const std::string& at, int64_t width) {
        const int64_t channels = kind == LayerKind::compressed_sparse ? 2 * width : width;
        out.insert(out.end(), {{at + "wkv.weight", {channels, c.hidden_size}},
                               {at + "wgate.weight", {channels, c.hidden_size}},
                               {at + "ape", {ratio, channels}},
                               {at + "norm.weight", {width}}});
    };
    if (kind != LayerKind::sliding) compressor("attn.compressor.", h.head_dim);
    if (kind == LayerKind::compressed_sparse) {
        const IndexerConfig& i = *config.indexer;
        compressor("attn.indexer.compressor.", i.head_dim);
        out.push_back({"attn.indexer.wq_b.weight", {i.heads * i.head_dim, c.q_lora_rank}});
        out.push_back({"attn.indexer.weights_proj.weight", {i.heads, c.hidden_size}});
    }
    for (NamedShape& each : out) each.name = text("layers.", layer, ".", each.name);
    return out;
}

// The weights of one layer by name. Matrices have the dtype asked for, vectors are f32.
struct RandomWeights {
    AttentionConfig config;
    int layer;
    std::deque<std::vector<char>> memory;
    std::vector<NamedTensor> tensors;

    RandomWeights(const std::string& json, int layer, smla_dtype matrices = SMLA_F32)
        : config(parse_config(json, "config.json")), layer(layer) {
        std::mt19937_64 random(uint64_t(17 + layer));
        std::normal_distribution<double> normal;
        for (const NamedShape& each :
             config.hybrid ? hybrid_shapes(config, layer) : dsa_shapes(config, layer)) {
            const bool matrix = each.shape.size() == 2 && !each.name.ends_with("ape");
            const bool quantises = each.name.ends_with(".weight");  // not the gate of pools
            const smla_dtype dtype = !matrix                               ? SMLA_F32
                                     : matrices == SMLA_E4M3 && !quantises ? SMLA_BF16
                                                                           : matrices;
            int64_t count = 1;
            for (const int64_t n : each.shape) count *= n;
            Tensor tensor = make_tensor(memory.emplace_back(size_t(count * dtype_bits(dtype) / 8)).data(),
                                        dtype, {count});
            if (dtype == SMLA_E4M3) {
                add_codes(each, tensor);
                continue;
            }
            const double scale = matrix ? 1 / std::sqrt(double(each.shape[1])) : 0.2;
            std::vector<double> values(static_cast<size_t>(count));
            for (double& value : values) value = normal(random) * scale + (matrix ? 0 : 1);
            store_row(tensor, address(tensor, 0), count, values.data());
            if (each.shape.size() == 2) tensor = reshape(tensor, {each.shape[0], each.shape[1]});
            tensors.push_back({each.name, tensor});
        }
    }

    // Random codes and the scales of their blocks.
    void add_codes(const NamedShape& each, Tensor codes) {
        std::mt19937 random(uint32_t(each.shape[0]));
        for (char& code : memory.back()) code = char(random() % 0x70 | (random() & 0x80));
        codes = reshape(codes, {each.shape[0], each.shape[1]});
        tensors.push_back({each.name, codes});
        const int64_t down = ceil_div(each.shape[0], 128), across = ceil_div(each.shape[1], 128);
        Tensor scale =
            make_tensor(memory.emplace_back(size_t(down * across * 4)).data(), SMLA_F32, {down * across});
        const std::vector<float> values(size_t(down * across), 1 / 512.f);
        store_row(scale, address(scale, 0), down * across, values.data());
        const std::string stem = each.name.substr(0, each.name.size() - std::string("weight").size());
        tensors.push_back({stem + "weight_scale_inv", reshape(scale, {down, across})});
    }

    // As a file that lives as long as the checkpoint does.
    Checkpoint checkpoint() const {
        const std::string path =
            (std::filesystem::temp_directory_path() / text("smla_random_", ::getpid(), ".safetensors"))
                .string();
        write_safetensors(path, tensors);
        Checkpoint out = Checkpoint::open(path);
        std::filesystem::remove(path);
        return out;
    }
};

struct KindOfLayer {
    const char* name;
    std::string (*config)(int64_t hidden);
    int layer;
};
constexpr KindOfLayer kKinds[] = {{"dsa", dsa_config, 0},         {"dsa_shared", dsa_config, 1},
                                  {"pools", pool_config, 1},      {"pools_shared", pool_config, 2},
                                  {"sliding", hybrid_config, 0},  {"ratio 4", hybrid_config, 1},
                                  {"ratio 128", hybrid_config, 2}};

// A selection for a layer that shares one: the newest of the keys that the token at `position` sees, then -1.
inline void append_newest(std::vector<int32_t>& topk, const Layer& layer, int64_t position, int32_t columns) {
    const int64_t ratio = std::max<int64_t>(layer.config().compress_ratio(layer.layer_index()), 1);
    const auto sees = int32_t((position + 1) / ratio), listed = std::min(sees, columns);
    for (int32_t i = 0; i < columns; ++i) topk.push_back(i < listed ? sees - listed + i : -1);
}

inline std::vector<double> random_hidden(int64_t tokens, int64_t width, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::vector<double> out(size_t(tokens * width));
    for (double& value : out) value = float(normal(random));
    return out;
}

}  // namespace smla::layers_test
