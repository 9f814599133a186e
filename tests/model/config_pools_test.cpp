// config.json of GLM-5.3-Flash: sparse layers among linear ones, and pools of index keys.
#include "configs.h"
#include "files.h"
#include "model/config.h"
#include "model/json.h"

namespace smla {
namespace {

using test::expect_error;

AttentionConfig parse(const std::string& json) { return parse_config(json, "config.json"); }

// Every fourth layer is sparse; what it selects are pools.
TEST(Config, Pools) {
    const AttentionConfig config = parse(test::kGlm53);
    EXPECT_EQ(config.common.family, ModelFamily::dsa);
    EXPECT_EQ(config.common.rope_dim, 0);
    EXPECT_EQ(config.common.latent_norm_eps, 1e-5);
    EXPECT_EQ(config.dsa->pool, 16);
    EXPECT_EQ(config.indexer->topk, 128);
    EXPECT_EQ(config.qk_head_dim(), 256);
    EXPECT_EQ(config.softmax_scale(), 1. / 16);
    for (const int64_t layer : {0, 1, 2, 4, 44}) {
        EXPECT_EQ(config.layer_kind(layer), LayerKind::linear);
        EXPECT_EQ(config.compress_ratio(layer), 0);
        EXPECT_EQ(config.sources(layer).selection, -1);
        expect_error([&] { config.check_computed(layer); }, SMLA_UNSUPPORTED, "layer",
                     text(layer, ", a linear attention (KDA) layer"),
                     "a sparse attention layer: 3, 7, 11, 15, 19, 23, 27, 31, ...");
    }
    for (const int64_t layer : {3, 7, 43}) {
        EXPECT_EQ(config.layer_kind(layer), LayerKind::dsa);
        EXPECT_EQ(config.compress_ratio(layer), 16);
        EXPECT_EQ(config.sources(layer).selection, layer);
        EXPECT_EQ(config.sources(layer).entries, -1);
        config.check_computed(layer);
    }
}

TEST(Config, PoolsAndListsOfLayers) {
    Json flat = Json::parse(test::kGlm53)["text_config"];
    flat["layer_types"] = {"full_attention", "linear_attention", "indexed_attention"};
    flat["indexer_types"] = {"full", "full", "shared"};
    flat.erase("num_hidden_layers");
    const AttentionConfig config = parse(flat.dump());
    EXPECT_EQ(config.common.layers, 3);
    EXPECT_EQ(config.layer_kind(1), LayerKind::linear);
    EXPECT_EQ(config.layer_kind(2), LayerKind::dsa_shared);
    EXPECT_EQ(config.sources(2).selection, 0);
    const auto refused = [&](const char* name, const Json& value, const std::string& field,
                             const std::string& got, const std::string& wanted) {
        Json changed = flat;
        changed[name] = value;
        expect_error([&] { parse(changed.dump()); }, SMLA_DATA_ERROR, "config.json: " + field, got, wanted);
    };
    refused("layer_types", {"full_attention", "linear_attention", "mamba"}, "layer_types[2]", "\"mamba\"",
            "\"linear_attention\" or \"deepseek_sparse_attention\"");
    refused("layer_types", nullptr, "layer_types", "absent",
            "a list, or num_hidden_layers (every fourth layer is then sparse)");
    refused("layer_types", {"linear_attention"}, "layer_types", "only linear attention layers",
            "at least one sparse attention layer");
    Json longer = flat;  // lists may go on behind the last layer
    longer["layer_types"] = {"linear_attention", "full_attention", "full_attention"};
    longer["num_hidden_layers"] = 1;
    expect_error([&] { parse(longer.dump()); }, SMLA_DATA_ERROR, "config.json: layer_types",
                 "only linear attention layers", "at least one sparse attention layer");
    refused("num_hidden_layers", 4, "layer_types, indexer_types",
            "layer_types 3 layers; indexer_types 3 layers",
            "layer_types at least 4 (num_hidden_layers); indexer_types at least 4 (num_hidden_layers)");
    refused("indexer_types", {"shared", "full", "full"}, "indexer_types", "a shared layer 0",
            "a full layer 0 (the first sparse layer must select)");
    refused("qk_rope_head_dim", 64, "qk_rope_head_dim", "64", "0 (attention of this model has no RoPE)");
    refused("index_kpool", 3, "index_topk", "2048", "a multiple of index_kpool (3)");
    refused("index_kpool", 0, "index_kpool", "0", "an integer from 1 to 1024");
    refused("index_kpool_always_select_tail", false, "index_kpool_always_select_tail", "false", "true");
}

}  // namespace
}  // namespace smla
