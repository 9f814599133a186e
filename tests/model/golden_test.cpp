// Configs and weights of the golden vectors (../goldens), which were made with transformers: both spellings
// of a config mean the same, the softmax scale is the one its model computed, and every layer's tensors are
// found.
#include <source_dir.h>
#include "model/json.h"
#include "model/weights.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace smla {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> golden_cases() {
    std::vector<fs::path> out;
    for (const fs::directory_entry& entry : fs::directory_iterator(SMLA_SOURCE_DIR "/tests/goldens"))
        if (entry.path().extension() == ".json") out.push_back(entry.path());
    return out;
}

// the case's config as smla reads it, from member `name` of the case
AttentionConfig golden_config(const Json& golden, const char* name) {
    Json json = golden[name];
    json["model_type"] = golden["model_type"];
    const bool own =
        std::string_view(name) == "config";  // names fields as checkpoints do, but not the layers
    if (own && golden["family"] == "dsa" && !json.contains("indexer_types"))
        for (const Json& layer : golden["layers"]) json["indexer_types"].push_back(layer["indexer"]);
    return parse_config(json.dump(), name);
}

// Transformers has no class for V4.1: its other spelling is a config within that of the whole model.
AttentionConfig nested_config(const Json& golden) {
    Json json;
    json["model_type"] = golden["model_type"];
    json["text_config"] = golden["config"];
    return parse_config(json.dump(), "text_config");
}

int64_t layer_or_none(const Json& number) { return number.is_null() ? -1 : number.get<int64_t>(); }

TEST(Goldens, BothSpellingsOfTheConfigAgreeAndTheWeightsLoad) {
    size_t layers = 0;
    for (const fs::path& path : golden_cases()) {
        SCOPED_TRACE(path.filename());
        const JsonDocument golden =
            parse_json(read_text_file(path.string(), 1 << 24), path.filename().string());
        const AttentionConfig own = golden_config(golden, "config"),
                              theirs = golden.contains("hf_config_kwargs")
                                           ? golden_config(golden, "hf_config_kwargs")
                                           : nested_config(golden);
        // both sides compute in double; the order of the products may differ
        EXPECT_NEAR(own.softmax_scale(), golden["softmax_scale"].get<double>(), 1e-15);
        EXPECT_EQ(own.softmax_scale(), theirs.softmax_scale());
        const Checkpoint checkpoint =
            Checkpoint::open(fs::path(path).replace_extension(".safetensors").string());
        for (const Json& each : golden["layers"]) {
            const int64_t layer = each["layer_idx"].get<int64_t>();
            ++layers;
            EXPECT_EQ(own.layer_kind(layer), theirs.layer_kind(layer));
            EXPECT_EQ(own.compress_ratio(layer), theirs.compress_ratio(layer));
            EXPECT_EQ(rope_frequencies(own.common.rope_dim, own.rope(layer)),
                      rope_frequencies(theirs.common.rope_dim, theirs.rope(layer)));
            if (each.contains("kv_source")) {
                EXPECT_EQ(theirs.sources(layer).entries, layer_or_none(each["kv_source"]));
                EXPECT_EQ(theirs.sources(layer).selection, layer_or_none(each["index_source"]));
                const int64_t candidates = golden["config"]["candidate_source_layer_id"].get<int64_t>();
                const bool used = each["is_candidate_source"] || each["uses_candidates"];
                EXPECT_EQ(theirs.sources(layer).candidates, used ? candidates : -1);
            }
            if (own.dsa) {
                const DsaWeights weights = load_dsa_weights(checkpoint, own, layer, {SMLA_F64, "w."});
                EXPECT_EQ(weights.indexer.has_value(), each["indexer"] == "full");
            } else {
                load_hybrid_weights(checkpoint, theirs, layer, {SMLA_BF16, "w."});
            }
        }
    }
    EXPECT_GT(layers, 0u) << "no golden vectors";
}

}  // namespace
}  // namespace smla
