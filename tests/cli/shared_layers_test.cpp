// smla example, run and demo with layers that read what other layers wrote, selected and named: V4.1,
// GLM-5.2.
#include "cli/run_tool.h"
#include "core/tensor.h"
#include "model/files.h"

#include <gtest/gtest.h>

namespace smla::test {

namespace {

namespace fs = std::filesystem;

std::string example(const Folder& folder, const std::string& golden, int layer) {
    const std::string out = folder.path(golden + "_" + std::to_string(layer));
    json_of({"example", "--golden", SMLA_SOURCE_DIR "/tests/goldens/" + golden + ".safetensors", "--layer",
             std::to_string(layer), "--out", out});
    return out;
}

std::vector<std::string> run(const Folder& folder, const std::string& example,
                             const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"run",        example,
                                   "--hidden",   example + "/hidden.safetensors",
                                   "--out",      folder.path("y.safetensors"),
                                   "--expected", example + "/expected.safetensors"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

TEST(CliSharedLayers, RunAloneWithWhatTheyRead) {
    const Folder folder;
    for (int layer = 0; layer < 6; ++layer) {
        SCOPED_TRACE(layer);
        const std::string path = example(folder, "V41_chain", layer);
        const auto whole = json_of(run(folder, path));
        EXPECT_EQ(whole["layer"], layer);
        EXPECT_LT(whole["expected"]["max_over_rms"], 5e-6);
        const auto chunks = json_of(run(folder, path, {"--chunk", "7,1,13", "--decode", "5"}));
        EXPECT_LT(chunks["expected"]["max_over_rms"], 5e-6);
        const auto exact = json_of(run(folder, path, {"--engine", "reference", "--f64"}));
        EXPECT_LT(exact["expected"]["max_over_rms"], 1e-12);
    }
    EXPECT_LT(json_of(run(folder, example(folder, "G2", 1)))["expected"]["max_over_rms"], 5e-6);
    // entries of layer 1, the selection of layer 3, which reads those entries too
    const std::string three = example(folder, "V41_share", 4);
    EXPECT_LT(json_of(run(folder, three, {"--chunk", "9,4,30"}))["expected"]["max_over_rms"], 5e-6);
}

// Where the selection is in a file, the layer that selects need not run: GLM-5.2's shared layers read nothing
// else.
TEST(CliSharedLayers, ASelectionInAFileTakesThePlaceOfTheLayerThatSelects) {
    const Folder folder;
    const auto less = [&](const std::string& path, const std::string& name) {
        const SafetensorsFile file = SafetensorsFile::open(path + "/hidden.safetensors");
        std::vector<HostTensor> kept;
        std::vector<NamedTensor> list;
        for (const std::string& each : file.names())
            if (each != name) kept.push_back(file.tensor(each)), list.push_back({each, kept.back().view});
        EXPECT_LT(list.size(), file.names().size());
        std::vector<std::string> words = run(folder, path);
        words[3] = folder.path("less.safetensors");
        write_safetensors(words[3], list, file.metadata());
        return words;
    };
    const auto with_topk = [](std::vector<std::string> words, const std::string& path) {
        words.insert(words.end(), {"--topk", path + "/expected.safetensors"});
        return words;
    };
    const std::string shared = example(folder, "G2", 1), last = example(folder, "V41_chain", 5);
    std::vector<std::string> words = less(shared, "hidden.layer0");
    EXPECT_EQ(error_of(words, 2)["wanted"], "the hidden states of layer 0, which layer 1 reads");
    EXPECT_LT(json_of(with_topk(words, shared))["expected"]["max_over_rms"], 5e-6);
    EXPECT_LT(json_of(with_topk(run(folder, last), last))["expected"]["max_over_rms"], 5e-6);
    words = with_topk(less(last, "hidden.layer3"), last);  // whose entries it needs still
    EXPECT_EQ(error_of(words, 2)["field"], "less.safetensors: tensor hidden.layer3");
}

// GLM-5.3: pools of tokens, a layer that shares the selection of pools, and layers that are not computed.
TEST(CliSharedLayers, PoolsOfTokens) {
    const Folder folder;
    for (const char* name : {"N1", "N1_pool1", "N2"}) {
        SCOPED_TRACE(name);
        const std::string path = example(folder, name, 0);
        EXPECT_LT(json_of(run(folder, path))["expected"]["max_over_rms"], 1e-5);
        const auto chunks =
            json_of(run(folder, path, {"--chunk", "7,1,9", "--decode", "5", "--page-tokens", "2"}));
        EXPECT_LT(chunks["expected"]["max_over_rms"], 1e-5);
        const auto exact = json_of(run(folder, path, {"--engine", "reference", "--f64"}));
        EXPECT_LT(exact["expected"]["max_over_rms"], 1e-12);
    }
    const std::string shared = example(folder, "N2", 1);
    EXPECT_LT(json_of(run(folder, shared, {"--chunk", "13,1"}))["expected"]["max_over_rms"], 1e-5);
    const auto error = error_of(run(folder, example(folder, "N1", 0), {"--layer", "1"}), 3);
    EXPECT_EQ(error["got"], "1, a linear attention (KDA) layer");
    EXPECT_EQ(error["wanted"], "a sparse attention layer: 3");
    // the records and index keys of servers: those are rotated before they are rounded
    const std::string wide = example(folder, "N3", 0);
    for (const char* index : {"index_fp8_132", "row_bf16"}) {
        const auto found = json_of(run(folder, wide, {"--kv-format", "fp8_528", "--index-format", index}));
        EXPECT_TRUE(found["expected"]["pass"]) << found;
    }
    const Finished demo = run_tool({"demo", wide, "--json"});
    EXPECT_EQ(demo.code, 0) << demo.err;
    EXPECT_EQ(nlohmann::json::parse(demo.out)["layers"].size(), 3u);
}

// Records of four bits come within the error of their rounding, by the rules of either engine.
TEST(CliSharedLayers, RecordsOfV41ByEitherWriter) {
    const Folder folder;
    const std::string path = example(folder, "V41_full", 4), topk = path + "/expected.safetensors";
    for (const char* format : {"fp8_528_g32", "nvfp4_288"}) {
        const auto vllm = json_of(run(folder, path, {"--topk", topk, "--kv-format", format}));
        const auto sglang =
            json_of(run(folder, path, {"--topk", topk, "--kv-format", format, "--kv-writer", "sglang"}));
        EXPECT_TRUE(vllm["expected"]["pass"]) << vllm;
        EXPECT_TRUE(sglang["expected"]["pass"]) << sglang;
        EXPECT_NE(vllm["expected"]["l2"], sglang["expected"]["l2"]);
    }
    const auto error = error_of(run(folder, path, {"--kv-format", "fp8_584", "--kv-writer", "sglang"}), 2);
    EXPECT_EQ(error["field"], "--kv-writer");
    EXPECT_EQ(error["wanted"], "vllm, because fp8_584 has no writer variants");
}

// Records of the published widths: each output is compared where the expected keys were selected.
TEST(CliSharedLayers, DemoServesEveryKindOfLayer) {
    const Folder folder;
    std::vector<std::string> words{"demo"};
    for (int layer = 0; layer < 6; ++layer) words.push_back(example(folder, "V41_full", layer));
    words.emplace_back("--json");
    const Finished run = run_tool(words);
    EXPECT_EQ(run.code, 0) << run.err;
    const auto found = nlohmann::json::parse(run.out);
    EXPECT_TRUE(found["pass"]) << found;
    ASSERT_EQ(found["layers"].size(), 6u * 5);
    for (const auto& row : found["layers"]) {
        EXPECT_EQ(row["verdict"], "agrees") << row;
        if (row["layer"] == "sliding") EXPECT_TRUE(row["same_selection"].is_null());
        else EXPECT_GE(row["same_selection"], 0.97) << row;
    }
}

}  // namespace

}  // namespace smla::test
