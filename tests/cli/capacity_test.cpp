// smla capacity against the published sizes of the models, worked by hand from their layers.
#include "cli/run_tool.h"
#include "model/configs.h"

#include <gtest/gtest.h>

#include <fstream>

namespace smla::test {

namespace {

nlohmann::json capacity(const std::string& config, std::vector<std::string> words = {}) {
    const TemporaryFile file(config);
    words.insert(words.begin(), {"capacity", "--model", file.path()});
    return json_of(words);
}

double total(const nlohmann::json& found, const char* key) { return found["totals"][key]; }

const std::vector<std::string> kBf16{"--kv-format", "bf16", "--index-format", "bf16"};

// Names of the Hugging Face hub are suggested by their last component.
TEST(CliCapacity, NamesOfTheHubAreAnsweredWithTheModel) {
    const std::map<std::string, std::string> models{{"deepseek-ai/DeepSeek-V3.2", "deepseek-v3.2"},
                                                    {"deepseek-ai/DeepSeek-V3.2-Exp/", "deepseek-v3.2"},
                                                    {"deepseek-ai/DeepSeek-V4-Flash", "deepseek-v4-flash"},
                                                    {"zai-org/GLM-5", "glm-5"},
                                                    {"zai-org/GLM-5.1", "glm-5.1"},
                                                    {"zai-org/GLM-5.2-FP8", "glm-5.2"},
                                                    {"zai-org/GLM-5.3-Flash", "glm-5.3-flash"},
                                                    {"zai-org/glm5.1", "glm-5.1"}};
    for (const auto& [hub, name] : models)
        for (const char* command : {"capacity", "explain"}) {
            const auto error = error_of({command, "--model", hub}, 2);
            EXPECT_EQ(error["field"], hub);
            EXPECT_EQ(error["got"], "no such file or folder; did you mean --model " + name + "?");
        }
    for (const char* path : {"no/such/model", "nowhere/config.json", "/", "no_such.json"})
        EXPECT_EQ(error_of({"capacity", "--model", path}, 2)["message"].get<std::string>().find("did you"),
                  std::string::npos)
            << path;
}

TEST(CliCapacity, BytesPerToken) {
    EXPECT_EQ(total(capacity(kV32), "bytes_per_token"), 61 * (656 + 132));  // 48068
    EXPECT_EQ(total(capacity(kV32, kBf16), "bytes_per_token"), 61 * (1152 + 256));
    EXPECT_EQ(total(capacity(kGlm5), "bytes_per_token"), 78 * (656 + 132));  // 61464
    EXPECT_EQ(total(capacity(kGlm5, kBf16), "bytes_per_token"), 109824);
    // 21 of 78 layers have index keys
    EXPECT_EQ(total(capacity(kGlm52), "bytes_per_token"), 78 * 656 + 21 * 132);  // 53940
    EXPECT_EQ(total(capacity(kGlm52, kBf16), "bytes_per_token"), 95232);
    // 21 layers of ratio 4 with index keys, 20 of ratio 128
    EXPECT_EQ(total(capacity(v4_flash()), "bytes_per_token"),
              21 * (584 + 132) / 4.0 + 20 * 584 / 128.0);  // 3850
    EXPECT_EQ(total(capacity(v4_flash(), {"--index-format", "index_mxfp4_68"}), "bytes_per_token"),
              21 * (584 + 68) / 4.0 + 20 * 584 / 128.0);  // 3514
    EXPECT_EQ(total(capacity(v4_flash(), kBf16), "bytes_per_token"),
              21 * (1024 + 256) / 4.0 + 20 * 8);  // 6880
    EXPECT_EQ(total(capacity(v4_pro()), "bytes_per_token"),
              30 * (584 + 132) / 4.0 + 31 * 584 / 128.0);  // 5511
}

// Four layers write entries and index keys for the others: three of two tokens, one of one. 890 bytes with
// 4-bit records, the published figure.
TEST(CliCapacity, V41CountsEntriesOnceForAllWhoReadThem) {
    const auto found = capacity(v41(), {"--kv-format", "nvfp4_288", "--index-format", "index_mxfp4_68"});
    EXPECT_EQ(total(found, "bytes_per_token"), 3 * (288 + 68) / 2.0 + (288 + 68));
    // a window of 128 in every layer; two rows of kv and gate in f32 in the layers that pool two tokens
    EXPECT_EQ(total(found, "fixed_bytes_per_request"), 40 * 128 * 288 + 3 * 2 * 2 * 512 * 4);
    EXPECT_EQ(total(capacity(v41(), {"--kv-format", "fp8_528_g32"}), "bytes_per_token"),
              3 * (528 + 132) / 2.0 + (528 + 132));
    // scored: by the layers that select, of which the last four look at 2048 blocks of 8 alone
    std::map<std::string, int64_t> scored;
    const auto million = capacity(v41(), {"--context", "1048576"});
    for (const auto& row : million["flops"]) scored[row["layer_kind"]] = row["keys_scored"];
    const std::map<std::string, int64_t> wanted{{"sliding", 0},
                                                {"shared_sparse 2", 0},
                                                {"shared_sparse 1", 0},
                                                {"shared_sparse 2 (writes, selects)", 524288},
                                                {"shared_sparse 1 (writes, selects)", 1048576},
                                                {"shared_sparse 1 (selects)", 16384}};
    EXPECT_EQ(scored, wanted);
}

TEST(CliCapacity, FixedPartOfARequest) {
    EXPECT_EQ(total(capacity(kV32), "fixed_bytes_per_request"), 0);
    // a window of 128 in every layer; state rows of kv and score in f32: 8 of 2 x 1024 and of 2 x 256 values
    // at ratio 4, 128 of 2 x 512 at ratio 128
    EXPECT_EQ(total(capacity(v4_flash()), "fixed_bytes_per_request"),
              43 * 128 * 584 + 21 * (65536 + 16384) + 20 * 524288);
    EXPECT_EQ(total(capacity(v4_pro()), "fixed_bytes_per_request"),
              61 * 128 * 584 + 30 * (65536 + 16384) + 31 * 524288);
}

TEST(CliCapacity, WholeRequestsAndPages) {
    const auto v32 = capacity(kV32, {"--context", "131072", "--memory", "80"});
    EXPECT_EQ(total(v32, "bytes_per_request"), 131072.0 * 48068);  // 5.87 GiB
    EXPECT_EQ(total(v32, "paged_bytes_per_request"), 131072.0 * 48068);
    EXPECT_EQ(total(v32, "requests_that_fit"), 13);
    // one token more: one page of 64 more in each cache
    const auto odd = capacity(kV32, {"--context", "131073"});
    EXPECT_EQ(total(odd, "bytes_per_request"), 131073.0 * 48068);
    EXPECT_EQ(total(odd, "paged_bytes_per_request"), (131072.0 + 64) * 48068);
    const auto pages = capacity(kV32, {"--context", "100", "--page-tokens", "256", "--batch", "3"});
    EXPECT_EQ(total(pages, "paged_bytes_per_request"), 256.0 * 48068);
    EXPECT_EQ(total(pages, "batch_bytes"), 3 * 256.0 * 48068);
    EXPECT_TRUE(pages["totals"]["requests_that_fit"].is_null());
    EXPECT_EQ(total(capacity(kV32, {"--memory", "5.8"}), "requests_that_fit"), 0);
    EXPECT_NEAR(total(capacity(v4_flash()), "bytes_per_request") / (1 << 30), 0.484, 0.001);
    EXPECT_NEAR(total(capacity(kGlm52, {"--context", "1048576"}), "bytes_per_request") / (1 << 30), 52.7,
                0.05);
}

TEST(CliCapacity, SizesHaveUnits) {
    const auto requests = [](std::vector<std::string> words) {
        return total(capacity(kV32, words), "requests_that_fit");
    };
    for (const char* memory : {"80", "80GiB", "80gib", "80G", "81920MiB", "0.078125TiB"})
        EXPECT_EQ(requests({"--context", "128K", "--memory", memory}), 13) << memory;
    EXPECT_EQ(requests({"--context", "128k", "--memory", "80GB"}), 12);  // 80e9 / (131072 x 48068) = 12.7
    EXPECT_EQ(capacity(kV32, {"--context", "1M"})["context"], 1048576);
    const TemporaryFile v32(kV32);
    for (const char* memory : {"80 GiB", "80XB", "GiB", "-80GiB", "0GiB", "80GiBs", "1e300TB"})
        EXPECT_EQ(error_of({"capacity", "--model", v32.path(), "--memory", memory}, 2)["field"], "--memory");
    for (const char* context : {"128KiB", "K", "1.3K", "128KK", "3G", "9999999999999999M"})
        EXPECT_EQ(error_of({"capacity", "--model", v32.path(), "--context", context}, 2)["field"],
                  "--context");
}

// The first line states how many requests fit, such as requests of 128K tokens of DeepSeek-V3.2 in 80 GiB.
TEST(CliCapacity, AnswersFirst) {
    std::vector<std::string> ask{"capacity", "--model", "deepseek-v3.2", "--context", "128K"};
    const auto first_lines = [&](std::vector<std::string> more) {
        more.insert(more.begin(), ask.begin(), ask.end());
        const Finished run = run_tool(more);
        EXPECT_EQ(run.code, 0) << run.err;
        return run.out.substr(0, 400);
    };
    const auto begins = [](const std::string& text, const std::string& with) {
        EXPECT_EQ(text.substr(0, with.size()), with);
    };
    begins(first_lines({"--memory", "80GiB"}),
           "13 requests of 131072 tokens fit in 80.0 GiB.\nWeights are not counted: --weights-gib ");
    begins(first_lines({"--device", "h100"}), "13 requests of 131072 tokens fit in 80.0 GiB.\n");
    begins(first_lines({}),
           "One request of 131072 tokens takes 5.87 GiB; use --memory 80GiB or --device H200 ");
    begins(first_lines({"--memory", "80GiB", "--weights-gib", "70"}),
           "1 request of 131072 tokens fits in 80.0 GiB.\nWeights: 70.0 GiB (--weights-gib), 70.0 GiB on "
           "each GPU.\n");
    begins(first_lines({"--memory", "80GiB", "--weights-gib", "642", "--tp", "8"}),
           "0 requests of 131072 tokens fit in 8 GPUs with 80.0 GiB each.\nWeights: 642 GiB (--weights-gib), "
           "80.2 GiB on each GPU.\nThe weights alone do not fit.\n");
    begins(first_lines({"--device", "H200", "--weights-gib", "642", "--tp", "8", "--dp", "3"}), "At most ");
    ask.insert(ask.end(), {"--device", "sm_90"});
    EXPECT_EQ(error_of(ask, 2)["field"], "--device") << "cards of one architecture differ in memory";
}

// Computed by hand: an H200 has 140 GiB. 642 GiB of weights take 80.25 GiB on each of 8 GPUs, which leaves
// 59.75 GiB. A request takes 131072 x 48068 bytes = 5.868 GiB on each GPU of a tensor-parallel group.
TEST(CliCapacity, ParallelismDividesWhatItDivides) {
    const auto ask = [](std::vector<std::string> more) {
        more.insert(more.begin(), {"--context", "128K", "--device", "H200", "--weights-gib", "642"});
        return capacity(kV32, more);
    };
    const auto fits = [&](const std::vector<std::string>& more) {
        return total(ask(more), "requests_that_fit");
    };
    EXPECT_EQ(fits({"--tp", "8"}), 10);                // 59.75 / 5.868
    EXPECT_EQ(fits({"--tp", "8", "--dcp", "2"}), 20);  // 59.75 / 2.934
    EXPECT_EQ(fits({"--tp", "8", "--dcp", "8"}), 81);  // 59.75 / 0.7335
    EXPECT_EQ(fits({"--dp", "8"}), 80);                // 8 groups of 10
    EXPECT_EQ(fits({"--tp", "2", "--dp", "4"}), 40);
    EXPECT_EQ(fits({}), 0);  // the weights do not fit
    EXPECT_EQ(ask({"--tp", "8", "--dcp", "2"})["bytes_per_request_and_gpu"], 65536.0 * 48068);
    // Windows and states of V4 are not divided; entries are.
    const auto flash = [](const char* dcp) {
        return capacity(v4_flash(), {"--tp", "8", "--dcp", dcp})["bytes_per_request_and_gpu"].get<double>();
    };
    EXPECT_GT(flash("2"), flash("1") / 2);
    EXPECT_LT(flash("2"), flash("1"));
    const TemporaryFile v32(kV32);
    EXPECT_EQ(error_of({"capacity", "--model", v32.path(), "--tp", "8", "--dcp", "3"}, 2)["field"], "--dcp");
}

std::string safetensors(const std::string& header, size_t data) {
    const uint64_t size = header.size();
    return std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(data, '\0');
}

// Data parallelism divides routed experts and copies all other weights, if the files name the experts.
TEST(CliCapacity, WeightsOfACheckpoint) {
    const TemporaryFolder folder;
    const auto write = [&](const std::string& name, const std::string& text) {
        std::ofstream(folder.path() + "/" + name, std::ios::binary) << text;
    };
    const auto weights = [&](std::vector<std::string> more) {
        more.insert(more.begin(), {"capacity", "--model", folder.path()});
        return json_of(more, "weights");
    };
    write("config.json", kV32);
    EXPECT_EQ(weights({})["bytes"], 0);
    const std::string index =
        R"({"metadata": {"total_size": 1200}, "weight_map": {
            "model.layers.0.mlp.experts.0.up_proj.weight": "a.st",
            "model.layers.0.self_attn.o_proj.weight": "b.st"}})";
    write("model.safetensors.index.json", index);
    auto found = weights({"--tp", "2", "--dp", "3"});  // the files do not exist
    EXPECT_EQ(found["bytes"], 1200);
    EXPECT_EQ(found["experts_known"], false);
    EXPECT_EQ(found["bytes_per_gpu"], 200);
    write("a.st", safetensors(R"({"model.layers.0.mlp.experts.0.up_proj.weight":
        {"dtype": "U8", "shape": [900], "data_offsets": [0, 900]}})",
                              900));
    write("b.st", safetensors(R"({"model.layers.0.self_attn.o_proj.weight":
        {"dtype": "U8", "shape": [300], "data_offsets": [0, 300]}, "__metadata__": {"format": "pt"}})",
                              300));
    found = weights({"--tp", "2", "--dp", "3"});
    EXPECT_EQ(found["bytes"], 1200);
    EXPECT_EQ(found["experts_known"], true);
    EXPECT_EQ(found["bytes_per_gpu"], 300 / 2 + 900 / 6);
    write("b.st", "short");
    EXPECT_EQ(error_of({"capacity", "--model", folder.path()}, 2)["field"], "b.st");
    write("model.safetensors.index.json", R"({"metadata": {}})");
    EXPECT_EQ(error_of({"capacity", "--model", folder.path()}, 2)["field"],
              "model.safetensors.index.json: metadata.total_size");
    write("model.safetensors.index.json", R"({"metadata": )");
    EXPECT_EQ(error_of({"capacity", "--model", folder.path()}, 2)["status"], "data error");
}

TEST(CliCapacity, SharedLayersHaveNoIndexCache) {
    const auto found = capacity(kGlm52);
    int shared = 0, index = 0;
    for (const auto& row : found["caches"]) {
        if (row["cache"] == "index") {
            EXPECT_EQ(row["layer_kind"], "dsa");
            EXPECT_EQ(row["layers"], 21);
            ++index;
        }
        if (row["layer_kind"] == "dsa_shared") {
            EXPECT_EQ(row["layers"], 57);
            ++shared;
        }
    }
    EXPECT_EQ(shared, 1);
    EXPECT_EQ(index, 1);
}

// GLM-5.3: an index key of 132 bytes per 16 tokens, and 16 rows of the state.
TEST(CliCapacity, PoolsOfTokens) {
    const auto found = capacity(kGlm53, {"--context", "131080"});
    EXPECT_EQ(total(found, "bytes_per_token"), 11 * (528 + 132 / 16.0));
    EXPECT_EQ(total(found, "fixed_bytes_per_request"), 11 * 16 * 256 * 4);
    EXPECT_EQ(found["flops"].size(), 1u);
    EXPECT_EQ(found["flops"][0]["layers"], 11);
    EXPECT_EQ(found["flops"][0]["keys_scored"], 8192);
    EXPECT_EQ(found["flops"][0]["keys_attended"], 2048 + 8);
    EXPECT_EQ(found["note"], "34 layers of linear attention and their states are not counted");
}

// The first two layers are linear.
TEST(CliCapacity, LayersWithoutCaches) {
    const auto found = capacity(kGlm53, {"--layers", "2"});
    EXPECT_TRUE(found["totals"]["requests_that_fit"].is_null());
    EXPECT_EQ(total(found, "bytes_per_request"), 0);
    EXPECT_EQ(found["note"], "2 layers of linear attention and their states are not counted");
    const TemporaryFile config(kGlm53);
    const auto error = error_of({"capacity", "--model", config.path(), "--layers", "2", "--memory", "80"}, 2);
    EXPECT_EQ(error["field"], "--memory");
}

TEST(CliCapacity, MtpLayersOnlyWhenAskedFor) {
    const auto without = capacity(kV32), with = capacity(kV32, {"--mtp"});
    EXPECT_NE(without["note"].get<std::string>().find("1 MTP layer not included"), std::string::npos);
    EXPECT_EQ(total(with, "bytes_per_token"), 62 * (656 + 132));
    EXPECT_EQ(total(with, "layers"), 62);
    EXPECT_EQ(total(capacity(kV32, {"--layers", "2"}), "bytes_per_token"), 2 * 788);
}

// What smla example unpacks describes one layer and does not say so.
TEST(CliCapacity, ExampleFoldersAreOneLayer) {
    struct Example {
        const char* golden;
        double bytes_per_token;
    };
    for (const Example& each : {Example{"D6", 656 + 132}, {"V6_sliding", 0}, {"V6_csa", (584 + 132) / 4.0}}) {
        const TemporaryFolder folder;
        json_of({"example", "--golden",
                 SMLA_SOURCE_DIR "/tests/goldens/" + std::string(each.golden) + ".safetensors", "--out",
                 folder.path()});
        const auto found = json_of({"capacity", "--model", folder.path()});
        EXPECT_EQ(total(found, "bytes_per_token"), each.bytes_per_token) << each.golden;
        EXPECT_EQ(total(found, "layers"), 1);
        EXPECT_TRUE(found["layers_assumed"].get<bool>());
        const std::string assumed = "config.json has no num_hidden_layers: one layer is assumed";
        EXPECT_EQ(found["note"].get<std::string>().rfind(assumed, 0), 0u) << found["note"];
        EXPECT_NE(run_tool({"capacity", "--model", folder.path()}).out.find(", 1 layer; " + assumed),
                  std::string::npos);
        const auto told = json_of({"capacity", "--model", folder.path(), "--layers", "3"});
        EXPECT_EQ(total(told, "layers"), 3);
        EXPECT_FALSE(told["layers_assumed"].get<bool>());
    }
    EXPECT_FALSE(capacity(kV32)["layers_assumed"].get<bool>());
}

nlohmann::json flops_of(const nlohmann::json& found, const std::string& kind) {
    for (const auto& row : found["flops"])
        if (row["layer_kind"] == kind) return row;
    ADD_FAILURE() << kind << found;
    return {};
}

TEST(CliCapacity, FlopsOfV32) {
    const auto row = flops_of(capacity(kV32, {"--context", "131072"}), "dsa");
    EXPECT_EQ(row["attend"], 2.0 * 128 * 2048 * (576 + 512));  // 0.57 G
    EXPECT_EQ(row["score"], 2.0 * 64 * 128 * 131072);          // 2.15 G
    EXPECT_EQ(row["keys_attended"], 2048);
    // two for each weight of the checkpoint's tensors
    const double weights = 1536. * 7168 + 24576. * 1536 + 576. * 7168 + 32768. * 512 + 7168. * 16384 +
                           8192. * 1536 + 128. * 7168 + 64. * 7168;
    EXPECT_EQ(row["project"].get<double>() + row["absorb"].get<double>() + row["up_project"].get<double>() +
                  row["out_project"].get<double>(),
              2 * weights);
    EXPECT_EQ(row["all_layers"], 61 * row["layer"].get<double>());
    const auto early = flops_of(capacity(kV32, {"--context", "1000"}), "dsa");
    EXPECT_EQ(early["keys_attended"], 1000);
    EXPECT_EQ(early["keys_scored"], 1000);
}

TEST(CliCapacity, FlopsOfV4Flash) {
    const auto found = capacity(v4_flash(), {"--context", "131072"});
    const auto sliding = flops_of(found, "sliding"), sparse = flops_of(found, "compressed_sparse"),
               heavy = flops_of(found, "heavily_compressed 128");
    EXPECT_EQ(sliding["attend"], 2.0 * 64 * 1024 * 128);
    EXPECT_EQ(sparse["attend"], 2.0 * 64 * 1024 * (128 + 512));  // 0.084 G
    EXPECT_EQ(sparse["score"], 2.0 * 64 * 128 * 32768);          // 0.54 G
    EXPECT_EQ(heavy["attend"], 2.0 * 64 * 1024 * (128 + 1024));  // 0.15 G
    EXPECT_EQ(heavy["score"], 0);
    const double base = 1024. * 4096 + 32768. * 1024 + 512. * 4096;
    EXPECT_EQ(sliding["project"], 2 * base);
    EXPECT_EQ(sparse["project"], 2 * (base + 2 * 1024. * 4096 + 8192. * 1024 + 64. * 4096 + 2 * 256. * 4096));
    EXPECT_EQ(heavy["project"], 2 * (base + 2 * 512. * 4096));
    EXPECT_EQ(sliding["out_project"], 2 * (8192. * 4096 + 4096. * 8192));
}

TEST(CliCapacity, Errors) {
    const TemporaryFile v32(kV32), broken("{\"model_type\": \"deepseek_v32\", \"hidden_size\": -1"),
        other("{\"model_type\": \"llama\"}");
    const auto missing = error_of({"capacity", "--model", "/no/such/config.json"}, 2);
    EXPECT_EQ(missing["field"], "/no/such/config.json");
    EXPECT_EQ(error_of({"capacity"}, 2)["status"], "invalid argument");
    EXPECT_EQ(error_of({"capacity", "--model", broken.path()}, 2)["status"], "data error");
    EXPECT_NE(error_of({"capacity", "--model", other.path()}, 2)["got"].get<std::string>().find("llama"),
              std::string::npos);
    EXPECT_EQ(error_of({"capacity", "--model", v32.path(), "--kv-format", "fp8_584"}, 3)["field"],
              "kv_format");
    EXPECT_EQ(error_of({"capacity", "--model", v32.path(), "--kv-format", "fp8_655"}, 2)["field"],
              "--kv-format");
    EXPECT_EQ(error_of({"capacity", "--model", v32.path(), "--memory", "-1"}, 2)["field"], "--memory");
    EXPECT_EQ(error_of({"capacity", "--model", v32.path(), "--context", "0"}, 2)["field"], "--context");
    const auto memory = error_of({"capacity", "--model", v32.path(), "--memory", "1e300"}, 2);
    EXPECT_EQ(memory["wanted"],
              "a size such as 80GiB, at most 1000000000 GiB; units are MiB, GiB, TiB (or M, G, T), MB, GB, "
              "TB; no unit means GiB");
    const auto layers = error_of({"capacity", "--model", v32.path(), "--layers", "70"}, 2);
    EXPECT_EQ(layers["field"], "--layers");
    EXPECT_EQ(layers["wanted"], "1 to 62 (the layers of the model)");
}

}  // namespace

}  // namespace smla::test
