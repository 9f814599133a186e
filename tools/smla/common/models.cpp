#include "models.h"

#include "core/status.h"
#include "names.h"

#include <filesystem>

namespace smla::cli {

namespace {

struct Published {
    const char *name, *config;
};

// zai-org/GLM-5 and zai-org/GLM-5.1 have the same attention.
constexpr const char* kGlm5 = R"({
    "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1, "num_attention_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 2048, "indexer_rope_interleave": true, "rope_interleave": true,
    "rms_norm_eps": 1e-05, "attention_bias": false, "rope_parameters": {"rope_theta": 1000000,
    "rope_type": "default"}})";

// The members of config.json that the library reads, from the model pages of deepseek-ai and zai-org on
// Hugging Face.
constexpr Published kPublished[] = {{"deepseek-v3.2", R"({
    "model_type": "deepseek_v32", "hidden_size": 7168, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1, "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "index_n_heads": 64,
    "index_head_dim": 128, "index_topk": 2048, "rms_norm_eps": 1e-06, "attention_bias": false,
    "rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
    "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
    "quantization_config": {"weight_block_size": [128, 128]}})"},
                                    {"deepseek-v4-flash", R"({
    "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43,
    "num_nextn_predict_layers": 1, "num_attention_heads": 64, "q_lora_rank": 1024, "o_groups": 8,
    "index_topk": 512, "head_dim": 512, "qk_rope_head_dim": 64, "o_lora_rank": 1024, "sliding_window":
    128, "index_n_heads": 64, "index_head_dim": 128, "rms_norm_eps": 1e-06, "rope_theta": 10000,
    "compress_rope_theta": 160000, "rope_scaling": {"type": "yarn", "factor": 16,
    "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}, "quantization_config":
    {"weight_block_size": [128, 128]}, "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4,
    128, 4, 128, 4, 128, 4, 0]})"},
                                    {"deepseek-v4-pro", R"({
    "model_type": "deepseek_v4", "hidden_size": 7168, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1, "num_attention_heads": 128, "q_lora_rank": 1536, "o_groups": 16,
    "index_topk": 1024, "head_dim": 512, "qk_rope_head_dim": 64, "o_lora_rank": 1024, "sliding_window":
    128, "index_n_heads": 64, "index_head_dim": 128, "rms_norm_eps": 1e-06, "rope_theta": 10000,
    "compress_rope_theta": 160000, "rope_scaling": {"type": "yarn", "factor": 16,
    "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}, "quantization_config":
    {"weight_block_size": [128, 128]}, "compress_ratios": [128, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4,
    128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
    4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4,
    0]})"},
                                    {"deepseek-v4.1-flash", R"({
    "model_type": "deepseek_v41", "text_config": {"hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 64, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_groups":
    8, "o_lora_rank": 1024, "sliding_window": 128, "rms_norm_eps": 1e-20, "rope_theta": 10000,
    "compress_rope_theta": 160000, "rope_scaling": {"rope_type": "yarn", "factor": 16,
    "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}, "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 512, "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048, "candidate_block_size": 8, "compress_ratios": [0, 0, 2, 2, 2, 2, 2,
    2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    0, 0, 0]}})"},
                                    {"glm-5", kGlm5},
                                    {"glm-5.1", kGlm5},
                                    {"glm-5.2", R"({
    "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1, "num_attention_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 2048, "index_topk_freq": 4, "index_skip_topk_offset": 3,
    "indexer_rope_interleave": true, "rope_interleave": true, "rms_norm_eps": 1e-05, "attention_bias":
    false, "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}})"},
                                    {"glm-5.3-flash", R"({
    "model_type": "glm5_next", "text_config": {"model_type": "glm5_next_text", "hidden_size": 4096,
    "num_hidden_layers": 45, "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "index_n_heads": 16,
    "index_head_dim": 128, "index_topk": 2048, "index_kpool": 16, "rms_norm_eps": 1e-05,
    "attention_bias": false}})"}};

}  // namespace

std::vector<std::string> published_models() {
    std::vector<std::string> names;
    for (const Published& each : kPublished) names.emplace_back(each.name);
    return names;
}

AttentionConfig published_model(const std::string& name) {
    for (const Published& each : kPublished)
        if (each.name == lower_case(name)) return parse_config(each.config, each.name);
    fail(SMLA_INVALID_ARGUMENT, "--model", name,
         "a config.json, its folder, or one of " + joined(published_models()) +
             suggestion(lower_case(name), published_models()));
}

namespace {

// Returns the published model that the last component of a path names, as in "deepseek-ai/DeepSeek-V3.2" or
// "zai-org/GLM-5.2-FP8", or "".
std::string model_in_path(const std::string& path) {
    const std::string name = path.substr(0, path.find_last_not_of('/') + 1);
    const std::string word = lower_case(name.substr(name.rfind('/') + 1));
    std::string best;
    for (const std::string& each : published_models())
        if (word.starts_with(each) && each.size() > best.size()) best = each;
    return best.empty() ? nearest(word, published_models()) : best;
}

}  // namespace

AttentionConfig load_model(const std::string& model) {
    std::error_code error;
    if (std::filesystem::exists(model, error)) return load_config(model);
    const bool path = model.find('/') != std::string::npos || model.ends_with(".json");
    if (!path) return published_model(model);
    if (const std::string near = model_in_path(model); !near.empty())
        fail(SMLA_IO_ERROR, model, text("no such file or folder; did you mean --model ", near, "?"), "");
    return load_config(model);
}

}  // namespace smla::cli
