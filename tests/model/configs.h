// config.json of the published models, with the members that attention reads (values from their Hugging Face
// folders).
#pragma once

#include <string>

namespace smla::test {

inline const std::string kV32 = R"({
  "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "hidden_size": 7168,
  "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "num_attention_heads": 128,
  "num_key_value_heads": 128,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128,
  "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048, "rms_norm_eps": 1e-06, "rope_theta": 10000,
  "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
  "mscale_all_dim": 1.0,
                   "original_max_position_embeddings": 4096},
  "max_position_embeddings": 163840, "attention_bias": false,
  "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
                          "activation_scheme": "dynamic", "scale_fmt": "ue8m0"}})";

inline const std::string kGlm5 = R"({
  "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_size": 6144,
  "num_hidden_layers": 78, "num_nextn_predict_layers": 1, "num_attention_heads": 64,
  "num_key_value_heads": 64,
  "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
  "qk_head_dim": 256,
  "v_head_dim": 256, "head_dim": 64, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
  "indexer_rope_interleave": true, "rope_interleave": true, "rms_norm_eps": 1e-05,
  "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "rope_scaling": null, "scale_fmt": null,
  "max_position_embeddings": 202752, "attention_bias": false})";

inline const std::string kGlm52 = R"({
  "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78, "num_nextn_predict_layers": 1,
  "num_attention_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
  "qk_rope_head_dim": 64, "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
  "index_topk_freq": 4, "index_skip_topk_offset": 3, "indexer_rope_interleave": true, "rope_interleave": true,
  "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
  "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})";

// GLM-5.3-Flash, whose language model's config lies in that of the whole.
inline const std::string kGlm53 = R"({"model_type": "glm5_next", "text_config": {
  "model_type": "glm5_next_text", "hidden_size": 4096, "num_hidden_layers": 45, "num_attention_heads": 64,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256,
  "index_n_heads": 16, "index_head_dim": 128, "index_topk": 2048, "index_kpool": 16, "rms_norm_eps": 1e-05,
  "hc_mult": 4, "hc_eps": 1e-06, "hc_sinkhorn_iters": 20, "attention_bias": false}})";

// ratios: the text of compress_ratios
inline std::string v4(const char* sizes, const std::string& ratios, int layers) {
    return std::string(R"({"model_type": "deepseek_v4", "num_hidden_layers": )") + std::to_string(layers) +
           "," + sizes +
           R"("num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "o_lora_rank": 1024,
  "sliding_window": 128, "index_n_heads": 64, "index_head_dim": 128, "rope_theta": 10000,
  "compress_rope_theta": 160000,
  "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                   "beta_slow": 1},
  "rms_norm_eps": 1e-06, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
  "max_position_embeddings": 1048576,
  "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
  "scale_fmt": "ue8m0"},
  "expert_dtype": "fp4", "compress_ratios": [)" +
           ratios + "]}";
}

inline std::string v4_flash() {  // [0, 0, 4, 128, 4, 128, ..., 4] and one MTP layer
    std::string ratios = "0, 0";
    for (int layer = 2; layer < 43; ++layer) ratios += layer % 2 == 0 ? ", 4" : ", 128";
    return v4(
        R"("hidden_size": 4096, "num_attention_heads": 64, "q_lora_rank": 1024, "o_groups": 8,
            "index_topk": 512,)",
        ratios + ", 0", 43);
}

inline std::string v4_pro() {  // [128, 128, 4, 128, ..., 4] and one MTP layer
    std::string ratios = "128, 128";
    for (int layer = 2; layer < 61; ++layer) ratios += layer % 2 == 0 ? ", 4" : ", 128";
    return v4(
        R"("hidden_size": 7168, "num_attention_heads": 128, "q_lora_rank": 1536, "o_groups": 16,
            "index_topk": 1024,)",
        ratios + ", 0", 61);
}

// The language model's config lies within that of the whole model. 40 layers and 3 draft layers.
inline std::string v41() {
    std::string ratios = "0, 0";
    for (int layer = 2; layer < 43; ++layer) ratios += layer < 20 ? ", 2" : layer < 40 ? ", 1" : ", 0";
    return R"({"model_type": "deepseek_v41", "text_config": {
  "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 64, "head_dim": 512,
  "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128,
  "rms_norm_eps": 1e-20, "rope_theta": 1e4, "compress_rope_theta": 1.6e5,
  "rope_scaling": {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
                   "beta_fast": 32, "beta_slow": 1},
  "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512,
  "kv_source_layer_ids": [2, 8, 14, 20], "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
  "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
  "compress_ratios": [)" +
           ratios + "]}}";
}

}  // namespace smla::test
