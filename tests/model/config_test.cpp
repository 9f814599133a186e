#include "model/config.h"

#include "configs.h"
#include "files.h"
#include "model/json.h"

#include <cmath>

namespace smla {
namespace {

using test::error_of;
using test::expect_error;
using test::v41;

std::string with(const std::string& json, const std::string& member, const std::string& value) {
    Json object = Json::parse(json);
    if (value.empty()) object.erase(member);
    else object[member] = Json::parse(value);
    return object.dump();
}

AttentionConfig parse(const std::string& json) { return parse_config(json, "config.json"); }

void bad(const std::string& json, const std::string& member, const std::string& got,
         const std::string& wanted = "") {
    expect_error([&] { parse(json); }, SMLA_DATA_ERROR, "config.json: " + member, got, wanted);
}

TEST(Config, DeepseekV32) {
    const AttentionConfig config = parse(test::kV32);
    EXPECT_EQ(config.common.model_type, "deepseek_v32");
    EXPECT_EQ(config.common.family, ModelFamily::dsa);
    EXPECT_EQ(config.common.hidden_size, 7168);
    EXPECT_EQ(config.common.layers, 61);
    EXPECT_EQ(config.common.mtp_layers, 1);
    EXPECT_EQ(config.common.heads, 128);
    EXPECT_EQ(config.common.q_lora_rank, 1536);
    EXPECT_EQ(config.common.rope_dim, 64);
    EXPECT_EQ(config.common.latent_norm_eps, 1e-6);
    EXPECT_EQ(config.dsa->kv_lora_rank, 512);
    EXPECT_EQ(config.dsa->qk_nope_head_dim, 128);
    EXPECT_EQ(config.dsa->v_head_dim, 128);
    EXPECT_EQ(config.indexer->heads, 64);
    EXPECT_EQ(config.indexer->topk, 2048);
    EXPECT_EQ(config.indexer->rope_style, SMLA_ROPE_HALF);
    EXPECT_EQ(config.indexer->key_norm_eps, 1e-6);
    EXPECT_NEAR(config.indexer->weight_factor(), 0.0110485435, 1e-10);
    EXPECT_NEAR(config.softmax_scale(), 0.1352337789, 5e-11);
    EXPECT_EQ(config.qk_head_dim(), 192);
    EXPECT_FALSE(config.hybrid.has_value());
    for (const int64_t layer : {0, 30, 60, 61}) {
        EXPECT_EQ(config.layer_kind(layer), LayerKind::dsa);
        EXPECT_EQ(config.index_source_layer(layer), layer);
    }
    expect_error([&] { config.layer_kind(62); }, SMLA_INVALID_ARGUMENT, "layer", "62", "0 to 61");
    expect_error([&] { config.rope(-1); }, SMLA_INVALID_ARGUMENT, "layer", "-1");
}

TEST(Config, Glm5) {
    const AttentionConfig config = parse(test::kGlm5);
    EXPECT_EQ(config.indexer->rope_style, SMLA_ROPE_INTERLEAVED);
    EXPECT_EQ(config.dsa->rope.theta, 1e6);
    EXPECT_FALSE(config.dsa->rope.yarn.has_value());
    EXPECT_EQ(config.softmax_scale(), 0.0625);
    EXPECT_NEAR(config.indexer->weight_factor(), 0.015625, 1e-17);
    EXPECT_EQ(config.common.latent_norm_eps, 1e-5);
    EXPECT_EQ(parse(with(test::kGlm5, "latent_norm_eps", "1e-6")).common.latent_norm_eps, 1e-6);
    EXPECT_EQ(config.layer_kind(77), LayerKind::dsa);
    // absent: as transformers saves GLM's configs, whose own code knows nothing else
    EXPECT_EQ(parse(with(test::kGlm5, "indexer_rope_interleave", "")).indexer->rope_style,
              SMLA_ROPE_INTERLEAVED);
    EXPECT_EQ(parse(with(test::kGlm5, "indexer_rope_interleave", "false")).indexer->rope_style,
              SMLA_ROPE_HALF);
}

TEST(Config, DeepseekLatentEpsIsNotRmsNormEps) {
    EXPECT_EQ(parse(with(test::kV32, "rms_norm_eps", "1e-5")).common.latent_norm_eps, 1e-6);
}

TEST(Config, Glm52SharesSelections) {
    const AttentionConfig config = parse(test::kGlm52);
    EXPECT_EQ(config.dsa->rope.theta, 8e6);
    int full = 0;
    for (int64_t layer = 0; layer < 78; ++layer) {
        const bool expected = layer <= 2 || layer % 4 == 2;  // 0, 1, 2, 6, 10, ..., 74
        EXPECT_EQ(config.layer_kind(layer) == LayerKind::dsa, expected) << layer;
        full += expected;
    }
    EXPECT_EQ(full, 21);
    EXPECT_EQ(config.index_source_layer(2), 2);
    EXPECT_EQ(config.index_source_layer(5), 2);
    EXPECT_EQ(config.index_source_layer(6), 6);
    EXPECT_EQ(config.index_source_layer(77), 74);
}

TEST(Config, IndexSharingInItsThreeSpellings) {
    const std::string base = with(test::kGlm5, "num_hidden_layers", "4");
    const std::string types = with(base, "indexer_types", R"(["full", "shared", "shared", "full"])");
    const std::string pattern = with(base, "index_topk_pattern", "\"FSSF\"");
    for (const std::string& json : {types, pattern}) {
        const AttentionConfig config = parse(json);
        EXPECT_EQ(config.index_source_layer(2), 0);
        EXPECT_EQ(config.index_source_layer(3), 3);
        EXPECT_EQ(config.layer_kind(1), LayerKind::dsa_shared);
        EXPECT_EQ(config.layer_kind(4), LayerKind::dsa);  // the MTP layer
    }
    // the list wins over the rule
    EXPECT_EQ(parse(with(types, "index_topk_freq", "1")).layer_kind(1), LayerKind::dsa_shared);
    bad(with(base, "indexer_types", R"(["full", "half", "full", "full"])"), "indexer_types[1]", "\"half\"");
    bad(with(base, "indexer_types", R"(["full", "shared"])"), "indexer_types", "2 layers",
        "at least 4 (num_hidden_layers)");
    bad(with(base, "indexer_types", R"(["shared", "full", "full", "full"])"), "indexer_types",
        "a shared layer 0");
    bad(with(base, "index_topk_pattern", "\"FX\\u0001F\""), "index_topk_pattern[1], index_topk_pattern[2]",
        "index_topk_pattern[1] X; index_topk_pattern[2] \\x01");
    bad(with(base, "index_topk_pattern", "3"), "index_topk_pattern", "3", "a string");
}

TEST(Config, DeepseekV4Flash) {
    const AttentionConfig config = parse(test::v4_flash());
    EXPECT_EQ(config.common.family, ModelFamily::hybrid);
    EXPECT_EQ(config.hybrid->head_dim, 512);
    EXPECT_EQ(config.hybrid->window, 128);
    EXPECT_EQ(config.hybrid->o_groups, 8);
    EXPECT_EQ(config.hybrid->o_lora_rank, 1024);
    EXPECT_EQ(config.indexer->topk, 512);
    EXPECT_EQ(config.indexer->rope_style, SMLA_ROPE_INTERLEAVED);
    EXPECT_NEAR(config.softmax_scale(), 0.0441941738, 5e-11);
    int kinds[3] = {};
    for (int64_t layer = 0; layer < 43; ++layer) {
        const LayerKind kind = config.layer_kind(layer);
        ++kinds[kind == LayerKind::sliding ? 0 : kind == LayerKind::compressed_sparse ? 1 : 2];
        EXPECT_EQ(config.index_source_layer(layer), kind == LayerKind::compressed_sparse ? layer : -1);
    }
    EXPECT_EQ(kinds[0], 2);
    EXPECT_EQ(kinds[1], 21);
    EXPECT_EQ(kinds[2], 20);
    EXPECT_EQ(config.layer_kind(43), LayerKind::sliding);  // MTP
    EXPECT_THROW(config.layer_kind(44), Error);
    EXPECT_EQ(config.compress_ratio(3), 128);
    EXPECT_EQ(config.rope(0).theta, 1e4);
    EXPECT_FALSE(config.rope(0).yarn.has_value());
    EXPECT_EQ(config.rope(2).theta, 1.6e5);
    EXPECT_EQ(config.rope(3).yarn->factor, 16);
    EXPECT_EQ(config.rope(43).theta, 1e4);
}

// Its layers have no other epsilon: a config that names one is not ignored.
TEST(Config, DeepseekV4HasOneEpsilon) {
    EXPECT_EQ(parse(with(test::v4_flash(), "latent_norm_eps", "1e-6")).common.rms_norm_eps, 1e-6);
    bad(with(test::v4_flash(), "latent_norm_eps", "1e-5"), "latent_norm_eps", "1e-05");
}

TEST(Config, DeepseekV4Pro) {
    const AttentionConfig config = parse(test::v4_pro());
    int sparse = 0, heavy = 0;
    for (int64_t layer = 0; layer < 61; ++layer) {
        sparse += config.compress_ratio(layer) == 4;
        heavy += config.compress_ratio(layer) == 128;
    }
    EXPECT_EQ(sparse, 30);
    EXPECT_EQ(heavy, 31);
    EXPECT_EQ(config.indexer->topk, 1024);
}

// The nested spelling of transformers says the same as the native one.
TEST(Config, V4AsTransformersWritesIt) {
    const std::string json = R"({"model_type": "deepseek_v4", "hidden_size": 64, "num_attention_heads": 4,
      "q_lora_rank": 32, "index_n_heads": 8, "index_head_dim": 16, "index_topk": 3, "rms_norm_eps": 1e-06,
      "num_hidden_layers": 3, "head_dim": 32, "partial_rotary_factor": 0.25, "o_groups": 2, "o_lora_rank": 16,
      "sliding_window": 8, "compress_rates": {"compressed_sparse_attention": 4,
      "heavily_compressed_attention": 8},
      "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
      "hc_mult": 2, "hc_eps": 1e-06, "hc_sinkhorn_iters": 20,
      "rope_parameters": {"main": {"rope_type": "default", "rope_theta": 20000.0},
        "compress": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256,
        "beta_fast": 32.0,
          "beta_slow": 1.0, "rope_theta": 170000.0, "attention_factor": 1.0}, "rope_theta": 10000.0}})";
    const AttentionConfig config = parse(json);
    EXPECT_EQ(config.common.rope_dim, 8);
    EXPECT_EQ(config.rope(0).theta, 20000);
    EXPECT_FALSE(config.rope(0).yarn.has_value());
    EXPECT_EQ(config.rope(1).theta, 170000);
    EXPECT_EQ(config.rope(2).yarn->original_positions, 256);
    EXPECT_EQ(config.compress_ratio(2), 8);
    EXPECT_EQ(config.layer_kind(1), LayerKind::compressed_sparse);
    // the fraction may stand inside rope_parameters instead
    Json moved = Json::parse(json);
    moved.erase("partial_rotary_factor");
    moved["rope_parameters"]["main"]["partial_rotary_factor"] = 0.25;
    EXPECT_EQ(parse(moved.dump()).common.rope_dim, 8);
    moved["rope_parameters"]["main"]["partial_rotary_factor"] = 0.2;
    bad(moved.dump(), "rope_parameters.main.partial_rotary_factor", "0.2",
        "a fraction that gives a whole number of the 32 channels of head_dim");
    moved["rope_parameters"]["main"].erase("partial_rotary_factor");
    bad(moved.dump(), "qk_rope_head_dim", "absent");

    bad(with(json, "layer_types", R"(["sliding_attention", "full_attention", "sliding_attention"])"),
        "layer_types[1]", "\"full_attention\"");
    bad(with(json, "layer_types", R"(["sliding_attention"])"), "layer_types", "1 layers",
        "at least 3 (num_hidden_layers)");
    bad(with(json, "compress_rates", R"({"compressed_sparse_attention": 8})"),
        "compress_rates.compressed_sparse_attention", "8", "4");
    bad(with(json, "compress_rates", R"({"heavily_compressed_attention": 4})"),
        "compress_rates.heavily_compressed_attention", "4");
}

std::string with_inner(const std::string& member, const std::string& value) {
    Json outer = Json::parse(v41());
    outer["text_config"] = Json::parse(with(outer["text_config"].dump(), member, value));
    return outer.dump();
}

TEST(Config, DeepseekV41) {
    const AttentionConfig config = parse(v41());
    EXPECT_EQ(config.common.rms_norm_eps, 1e-20);
    EXPECT_EQ(config.common.weight_block_rows, 32);
    EXPECT_EQ(config.common.weight_block_columns, 32);
    EXPECT_EQ(config.common.mtp_layers, 3);
    const struct {
        int64_t layer, ratio, entries, selection, candidates;
    } cases[] = {{0, 0, -1, -1, -1},  {1, 0, -1, -1, -1},  {2, 2, 2, 2, -1},    {7, 2, 2, 2, -1},
                 {8, 2, 8, 8, -1},    {19, 2, 14, 14, -1}, {20, 1, 20, 20, 20}, {23, 1, 20, 20, -1},
                 {24, 1, 20, 24, 20}, {39, 1, 20, 36, -1}, {36, 1, 20, 36, 20}, {40, 0, -1, -1, -1}};
    for (const auto& each : cases) {
        SCOPED_TRACE(each.layer);
        EXPECT_EQ(config.layer_kind(each.layer), each.ratio ? LayerKind::shared_sparse : LayerKind::sliding);
        EXPECT_EQ(config.compress_ratio(each.layer), each.ratio);
        const LayerSources sources = config.sources(each.layer);
        EXPECT_EQ(sources.entries, each.entries);
        EXPECT_EQ(sources.selection, each.selection);
        EXPECT_EQ(sources.candidates, each.candidates);
        EXPECT_EQ(config.rope(each.layer).yarn.has_value(), each.ratio > 0);
        EXPECT_EQ(config.rope(each.layer).theta, each.ratio ? 1.6e5 : 1e4);
    }
    // the same without the outer config, and with its own blocks of scales
    Json flat = Json::parse(v41())["text_config"];
    flat["model_type"] = "deepseek_v41";
    EXPECT_EQ(parse(flat.dump()).hybrid->sharing->candidate_blocks, 2048);
    Json blocks = Json::parse(v41());
    blocks["quantization_config"] = {{"weight_block_size", {64, 16}}};
    EXPECT_EQ(parse(blocks.dump()).common.weight_block_columns, 16);
}

TEST(Config, V41SourcesThatDoNotGoTogether) {
    bad(with_inner("kv_source_layer_ids", ""), "text_config.kv_source_layer_ids", "absent");
    bad(with_inner("kv_source_layer_ids", "[2, 8, 8, 20]"), "text_config.kv_source_layer_ids[2]", "8",
        "more than 8");
    bad(with_inner("kv_source_layer_ids", "[3, 8, 14, 20]"), "text_config.kv_source_layer_ids",
        "none up to layer 2");
    bad(with_inner("kv_source_layer_ids", "[2, 8, 14]"), "text_config.kv_source_layer_ids", "14",
        "a layer with ratio 1 at or before layer 20");
    bad(with_inner("kv_source_layer_ids", "[1, 2, 8, 14, 20]"), "text_config.kv_source_layer_ids", "1",
        "only layers whose compress_ratios are 1 or 2");
    bad(with_inner("index_source_layer_ids", "[2, 14, 20]"), "text_config.index_source_layer_ids", "2",
        "a layer from 8 to 8, because layer 8 reads the entries of layer 8");
    bad(with_inner("candidate_source_layer_id", "21"), "text_config.candidate_source_layer_id", "21",
        "-1, or one of index_source_layer_ids");
    bad(with_inner("candidate_source_layer_id", "14"), "text_config.candidate_source_layer_id", "14",
        "a layer that reads the same entries as layer 20");
    bad(with_inner("candidate_topk_blocks", "0"), "text_config.candidate_topk_blocks", "0");
    bad(with_inner("compress_ratios", "[0, 4]"), "text_config.compress_ratios[1]", "4",
        "an integer from 0 to 2");
}

TEST(Config, V4WithOneRatioForAllLayers) {
    for (const char* ratio : {"0", "4", "8"}) {
        std::string json = with(test::v4_flash(), "compress_ratios", "");
        json = with(with(json, "num_hidden_layers", ""), "compress_ratio", ratio);
        const AttentionConfig config = parse(json);
        EXPECT_EQ(config.compress_ratio(0), std::stoi(ratio));
        EXPECT_EQ(config.compress_ratio(77), std::stoi(ratio));  // the number of layers is not told
        EXPECT_EQ(config.rope(5).theta, std::stoi(ratio) == 0 ? 1e4 : 1.6e5);
    }
    bad(with(test::v4_flash(), "compress_ratios", ""), "compress_ratios", "absent");
}

// One flat object: its theta is that of the layers without compression, its scaling that of those with it.
TEST(Config, V4WithFlatRopeParameters) {
    Json json = Json::parse(test::v4_flash());
    json["rope_parameters"] = json["rope_scaling"];
    json["rope_parameters"]["rope_theta"] = 30000;
    json.erase("rope_scaling");
    json.erase("rope_theta");
    const AttentionConfig config = parse(json.dump());
    EXPECT_EQ(config.rope(0).theta, 3e4);
    EXPECT_FALSE(config.rope(0).yarn.has_value());
    EXPECT_EQ(config.rope(2).theta, 1.6e5);
    EXPECT_EQ(config.rope(2).yarn->factor, 16);
}

TEST(Config, V4NativeNames) {
    std::string json = with(test::v4_flash(), "sliding_window", "");
    EXPECT_EQ(parse(with(json, "window_size", "64")).hybrid->window, 64);
    bad(json, "sliding_window", "absent", "an integer from 1 to 1048576");
}

TEST(Config, V4Ratios) {
    const std::string base = with(test::v4_flash(), "num_hidden_layers", "3");
    bad(with(base, "compress_ratios", "[0, 1, 4]"), "compress_ratios[1]", "1",
        "0 (no compression), 4 (sparse), or another ratio of at least 2 (heavy)");
    bad(with(base, "compress_ratios", "[0, 4]"), "compress_ratios", "2 layers",
        "at least 3 (num_hidden_layers)");
    bad(with(base, "compress_ratios", "[0, -4, 4.0]"), "compress_ratios[1], compress_ratios[2]",
        "compress_ratios[1] -4; compress_ratios[2] 4.0");
    bad(with(base, "compress_ratios", "4"), "compress_ratios", "4", "a list");
}

TEST(Config, EmptyListsOfLayers) {
    const std::string v4 = with(test::v4_flash(), "num_hidden_layers", "");
    bad(with(v4, "compress_ratios", "[]"), "compress_ratios", "a list of 0",
        "a list with an entry for each layer");
    bad(with(with(v4, "compress_ratios", ""), "layer_types", "[]"), "layer_types", "a list of 0");
    bad(with(test::kGlm5, "indexer_types", "[]"), "indexer_types", "a list of 0");
}

TEST(Config, AModelWithoutSparseLayersNeedsNoIndexer) {
    std::string json = with(with(test::v4_flash(), "num_hidden_layers", "2"), "compress_ratios", "[0, 128]");
    for (const char* name : {"index_topk", "index_n_heads", "index_head_dim"}) json = with(json, name, "");
    EXPECT_FALSE(parse(json).indexer.has_value());
    bad(with(json, "compress_ratios", "[0, 4]"), "index_n_heads, index_head_dim, index_topk",
        "index_n_heads absent; index_head_dim absent; index_topk absent");
}

TEST(Config, ModelTypes) {
    bad(R"({"model_type": "deepseek_v5"})", "model_type", "\"deepseek_v5\"",
        "one of deepseek_v32, glm_moe_dsa, glm5_next, deepseek_v4, deepseek_v41");
    bad("{}", "model_type", "absent");
    bad(R"({"model_type": 7})", "model_type", "7", "a string");
    expect_error([] { parse("[]"); }, SMLA_DATA_ERROR, "config.json", "a list of 0", "an object");
    EXPECT_EQ(error_of([] { parse("{"); }).wanted, "valid JSON");
    expect_error([] { parse(R"({"model_type": "deepseek_v4", "model_type": "deepseek_v32"})"); },
                 SMLA_DATA_ERROR, "config.json", "a duplicate key \"model_type\"");
}

TEST(Config, EveryFaultIsToldAtOnce) {
    std::string json = with(test::kV32, "hidden_size", "0");
    json = with(json, "kv_lora_rank", "");
    json = with(json, "index_topk", "\"many\"");
    json = with(json, "attention_bias", "true");
    json = with(json, "rms_norm_eps", "-1e-6");
    const Error error = error_of([&] { parse(json); });
    EXPECT_EQ(error.field,
              "config.json: hidden_size, rms_norm_eps, attention_bias, kv_lora_rank, index_topk");
    EXPECT_EQ(
        error.got,
        "hidden_size 0; rms_norm_eps -1e-06; attention_bias true; kv_lora_rank absent; index_topk \"many\"");
    EXPECT_NE(error.wanted.find("kv_lora_rank an integer from 1 to 1024"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("hidden_size 0"), std::string::npos);
}

// Each required member of each model: absent, and of a wrong type.
TEST(Config, RequiredMembers) {
    const char* const common[] = {"hidden_size",   "num_attention_heads", "q_lora_rank",
                                  "index_n_heads", "index_head_dim",      "index_topk"};
    const char* const dsa[] = {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"};
    const char* const hybrid[] = {"head_dim", "o_groups", "o_lora_rank", "compress_rope_theta"};
    const auto check = [](const std::string& base, const char* member) {
        SCOPED_TRACE(member);
        bad(with(base, member, ""), member, "absent");
        bad(with(base, member, "null"), member, "absent");
        bad(with(base, member, "\"64\""), member, "\"64\"");
        bad(with(base, member, "-64"), member, "-64");
        bad(with(base, member, "[64]"), member, "a list of 1");
    };
    for (const char* member : common) {
        check(test::kV32, member);
        check(test::kGlm5, member);
        check(test::v4_pro(), member);
    }
    for (const char* member : dsa) check(test::kV32, member);
    for (const char* member : hybrid) check(test::v4_flash(), member);
    bad(with(test::kV32, "rope_theta", ""), "rope_theta", "absent");
}

TEST(Config, AbsurdSizes) {
    for (const char* member : {"hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank",
                               "v_head_dim", "index_n_heads", "index_topk", "num_hidden_layers"}) {
        bad(with(test::kV32, member, "4611686018427387904"), member, "4611686018427387904");
        bad(with(test::kV32, member, "18446744073709551615"), member, "18446744073709551615");
        bad(with(test::kV32, member, "1.5"), member, "1.5");
    }
    bad(with(test::kV32, "kv_lora_rank", "1000"), "kv_lora_rank", "1000",
        "at most 960 (1024 - qk_rope_head_dim)");
    bad(with(test::kV32, "qk_rope_head_dim", "63"), "qk_rope_head_dim", "63");
    bad(with(test::kV32, "index_head_dim", "32"), "index_head_dim", "32", "at least 64 (qk_rope_head_dim)");
    bad(with(test::v4_flash(), "o_groups", "7"), "o_groups", "7", "a divisor of 64 (num_attention_heads)");
    bad(with(test::v4_flash(), "qk_rope_head_dim", "514"), "qk_rope_head_dim", "514");
    bad(with(test::kGlm5, "rope_interleave", "false"), "rope_interleave", "false");
    bad(with(test::kGlm5, "rope_interleave", "1"), "rope_interleave", "1", "true or false");
}

TEST(Config, Rope) {
    const auto scaling = [](const char* member, const std::string& value) {
        Json json = Json::parse(test::kV32);
        if (value.empty()) json["rope_scaling"].erase(member);
        else json["rope_scaling"][member] = Json::parse(value);
        return json.dump();
    };
    bad(scaling("type", "\"linear\""), "rope_scaling.type", "\"linear\"", "default or yarn");
    bad(scaling("rope_type", "\"llama3\""), "rope_scaling.rope_type", "\"llama3\"", "default or yarn");
    bad(scaling("factor", ""), "rope_scaling.factor", "absent");
    bad(scaling("factor", "0.5"), "rope_scaling.factor", "0.5", "a number from 1 to 1000000");
    bad(scaling("mscale", ""), "rope_scaling.mscale", "absent");
    bad(scaling("mscale", "0.5"), "rope_scaling.mscale", "0.5",
        "1 (mscale_all_dim), because scaled RoPE channels are not supported");
    bad(scaling("attention_factor", "1.2"), "rope_scaling.attention_factor", "1.2");
    bad(scaling("beta_slow", "64"), "rope_scaling.beta_fast", "32", "at least 64 (beta_slow)");
    bad(scaling("original_max_position_embeddings", "1"), "rope_scaling.original_max_position_embeddings",
        "1");
    bad(scaling("type", ""), "rope_scaling.rope_type", "absent", "yarn, or default without factor");
    bad(with(test::kV32, "rope_scaling", R"({"mscale": 1})"), "rope_scaling.rope_type", "absent");
    for (const char* plain : {R"({"rope_theta": 10000})", R"({"rope_type": "default", "factor": 40})", "{}"})
        EXPECT_FALSE(parse(with(test::kV32, "rope_scaling", plain)).dsa->rope.yarn.has_value()) << plain;
    bad(with(test::kV32, "rope_scaling", "[]"), "rope_scaling", "a list of 0", "an object");
    bad(with(test::kV32, "rope_theta", "1"), "rope_theta", "1", "a number from 2 to 1e+12");
    EXPECT_EQ(parse(scaling("rope_theta", "5e5")).dsa->rope.theta, 5e5);  // nested wins, as in transformers 5
    EXPECT_FALSE(parse(with(test::kV32, "rope_scaling", "null")).dsa->rope.yarn.has_value());
    EXPECT_NEAR(parse(with(test::kV32, "rope_scaling", "null")).softmax_scale(), 1 / std::sqrt(192.0), 1e-16);
}

// What transformers makes of rotated channels, as far as they stay unscaled.
TEST(Config, RopeMagnitude) {
    const auto yarn = [](const std::string& more) {
        return with(
            test::kV32, "rope_scaling",
            R"({"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096)" + more + "}");
    };
    bad(yarn(R"(, "mscale": 0, "mscale_all_dim": 0)"), "rope_scaling.mscale_all_dim", "0");
    EXPECT_EQ(
        parse(yarn(R"(, "mscale": 0, "mscale_all_dim": 0, "attention_factor": 1)")).dsa->rope.yarn->mscale,
        0);
    EXPECT_EQ(parse(yarn(R"(, "attention_factor": 1)")).dsa->rope.yarn->mscale, 0);
    EXPECT_EQ(
        parse(yarn(R"(, "mscale": 3, "mscale_all_dim": 2, "attention_factor": 1)")).dsa->rope.yarn->mscale,
        2);

    const std::string flat =
        R"({"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536)";
    const AttentionConfig v4 =
        parse(with(test::v4_flash(), "rope_scaling", flat + R"(, "truncate": false})"));
    EXPECT_TRUE(v4.hybrid->compress_rope.yarn->truncate);
    EXPECT_FALSE(parse(yarn(R"(, "attention_factor": 1, "truncate": false)")).dsa->rope.yarn->truncate);
    const std::string main = R"({"main": {"rope_type": "default", "rope_theta": 10000}, "compress": )";
    bad(with(test::v4_flash(), "rope_parameters", main + flat + "}}"),
        "rope_parameters.compress.attention_factor", "absent");
}

TEST(Config, Quantization) {
    EXPECT_EQ(parse(test::kV32).common.weight_block_rows, 128);
    const AttentionConfig config =
        parse(with(test::kV32, "quantization_config", R"({"weight_block_size": [64, 32]})"));
    EXPECT_EQ(config.common.weight_block_rows, 64);
    EXPECT_EQ(config.common.weight_block_columns, 32);
    bad(with(test::kV32, "quantization_config", R"({"weight_block_size": [128]})"),
        "quantization_config.weight_block_size", "a list of 1");
    bad(with(test::kV32, "quantization_config", R"({"weight_block_size": [0, 128]})"),
        "quantization_config.weight_block_size[0]", "0");
}

TEST(Config, Load) {
    test::Folder folder;
    folder.write("config.json", test::kV32);
    EXPECT_EQ(load_config(folder.path()).common.heads, 128);
    EXPECT_EQ(load_config(folder.path("config.json")).common.heads, 128);
    folder.write("other.json", "{}");
    expect_error([&] { load_config(folder.path("other.json")); }, SMLA_DATA_ERROR, "other.json: model_type",
                 "absent");
    expect_error([&] { load_config(folder.path("none.json")); }, SMLA_IO_ERROR, folder.path("none.json"),
                 "cannot open the file: No such file or directory");
}

}  // namespace
}  // namespace smla
