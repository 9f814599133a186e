// smla explain --device and smla list backends: which attention backend serves which model where.
#include "cli/run_tool.h"
#include "engines/candidate.h"
#include "model/configs.h"

#include <gtest/gtest.h>

#include <map>

namespace smla::test {

namespace {

nlohmann::json explained(const TemporaryFile& config, const std::string& device,
                         std::vector<std::string> more = {}) {
    std::vector<std::string> words{"explain", "--model", config.path(), "--device", device};
    words.insert(words.end(), more.begin(), more.end());
    return json_of(words);
}

TEST(CliBackends, EveryDeviceOfTheModels) {
    const TemporaryFile v32(kV32), glm(kGlm5), v4(v4_flash()), sharing(v41());
    const std::map<std::string, std::pair<std::string, std::string>> expected = {
        {"cpu", {"TRITON_MLA_SPARSE", "FLASHMLA_SPARSE_DSV4"}},
        {"sm_80", {"TRITON_MLA_SPARSE", "FLASHMLA_SPARSE_DSV4"}},
        {"sm_86", {"TRITON_MLA_SPARSE", "FLASHMLA_SPARSE_DSV4"}},
        {"sm_89", {"TRITON_MLA_SPARSE", "FLASHMLA_SPARSE_DSV4"}},
        {"sm_90", {"FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4"}},
        {"sm_100", {"FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4"}},
        {"sm_120", {"SPARSE_MLA_SM120", "DSV4_SPARSE_MLA_SM120"}},
        {"sm_121", {"SPARSE_MLA_SM120", "DSV4_SPARSE_MLA_SM120"}}};
    for (const auto& [device, backends] : expected) {
        for (const TemporaryFile* latent : {&v32, &glm}) {
            const auto found = explained(*latent, device);
            EXPECT_EQ(found["backend"], backends.first) << device;
            EXPECT_EQ(found["candidates"].size(), 3u);
            const bool runs = device == "cpu" || has_code_for(std::stoi(device.substr(3)));
            EXPECT_EQ(found["engine_refusal"] == "", runs) << device;
        }
        EXPECT_EQ(explained(v4, device)["backend"], backends.second) << device;
        EXPECT_EQ(explained(v4, device, {"--kv-dtype", "fp8_e4m3"})["backend"], "FLASHINFER_MLA_SPARSE_DSV4");
        const bool sm_12x = device.substr(0, 5) == "sm_12";
        EXPECT_EQ(explained(sharing, device)["backend"],
                  sm_12x ? "FLASHINFER_MLA_SPARSE_DSV41" : "FLASHMLA_SPARSE_DSV41");
        EXPECT_EQ(explained(sharing, device)["candidates"].size(), 2u);
    }
    EXPECT_EQ(explained(v32, "cpu")["heads"], 128);
    EXPECT_EQ(explained(v32, "cpu", {"--heads", "16"})["heads"], 16);
}

TEST(CliBackends, EveryCandidateSaysWhyAndWhatTheOriginalWould) {
    const TemporaryFile v4(v4_flash());
    for (const auto& candidate : explained(v4, "sm_90")["candidates"]) {
        const std::string name = candidate["backend"];
        EXPECT_EQ(candidate["can_serve"].get<bool>(), candidate["refusals"].empty()) << candidate;
        EXPECT_EQ(candidate["chosen"].get<bool>(), name == "FLASHMLA_SPARSE_DSV4");
        EXPECT_EQ(candidate["original"].empty(), name == "FLASHMLA_SPARSE_DSV4") << candidate;
    }
    const Finished text = run_tool({"explain", "--model", v4.path(), "--device", "sm_90"});
    EXPECT_EQ(text.code, 0);
    for (const char* part :
         {"attention backend FLASHMLA_SPARSE_DSV4, engine cuda", "original: would accept",
          "DSV4_SPARSE_MLA_SM120", "compute capability 9.x is not supported (supported: 12)"})
        EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
}

// Which kernels of the build a GPU could run, or one sentence that says why there are none.
TEST(CliBackends, KernelsForANamedDevice) {
    const TemporaryFile v32(kV32);
    const auto shown = [&](const char* device) {
        return run_tool({"explain", "--model", v32.path(), "--device", device}).out;
    };
    EXPECT_EQ(shown("cpu").find("kernels"), std::string::npos);
    EXPECT_TRUE(explained(v32, "cpu")["kernels"].is_null());
    for (const char* device : {"A100", "H200"}) {
        const int capability = std::string(device) == "A100" ? 80 : 90;
        const auto kernels = explained(v32, device)["kernels"];
        EXPECT_EQ(kernels.is_null(), !has_code_for(capability));
        const std::string text = shown(device);
        if (cuda_architectures().empty()) {
            EXPECT_NE(text.find("kernels: none, because this build has no CUDA kernels; cmake --preset cuda "
                                "builds them\n"),
                      std::string::npos)
                << text;
        } else if (has_code_for(capability)) {
            bool hopper = false;
            for (const std::string kernel : kernels["attend"]) {
                hopper |= kernel.starts_with("cuda_sm90_");
                EXPECT_NE(text.find(kernel), std::string::npos) << text;
            }
            EXPECT_EQ(hopper, capability == 90);
        }
    }
}

TEST(CliBackends, RecordsOfBothCaches) {
    const TemporaryFile sharing(v41());
    const auto cache = [&](const char* device, const char* type) {
        const auto found = explained(sharing, device, {"--kv-dtype", type});
        EXPECT_EQ(found["candidates"][0]["backend"], "FLASHMLA_SPARSE_DSV41");
        return found["candidates"][0]["cache"].get<std::string>();
    };
    EXPECT_EQ(cache("sm_100", "auto"), "fp8_528_g32");
    EXPECT_EQ(cache("sm_90", "auto"), "fp8_584");
    EXPECT_EQ(cache("sm_100", "nvfp4_ds_mla"), "fp8_528_g32, nvfp4_288");
    const auto split = explained(sharing, "sm_100", {"--kv-dtype", "nvfp4_288_split"});
    EXPECT_EQ(split["backend"], "FLASHINFER_MLA_SPARSE_DSV41");
    EXPECT_TRUE(split["candidates"][0]["cache"].is_null());  // FlashMLA's records are not split
}

TEST(CliBackends, NamesForceOne) {
    const TemporaryFile v32(kV32);
    EXPECT_EQ(explained(v32, "sm_90", {"--backend", "TRITON_MLA_SPARSE"})["backend"], "TRITON_MLA_SPARSE");
    const Finished run = run_tool({"explain", "--model", v32.path(), "--device", "sm_90", "--json"},
                                  {.environment = {"SMLA_BACKEND=SPARSE_MLA_SM120"}});
    EXPECT_EQ(nlohmann::json::parse(run.out)["backend"], "SPARSE_MLA_SM120");
    EXPECT_EQ(nlohmann::json::parse(run.out)["forced"], true);
    const Finished none = run_tool({"explain", "--model", v32.path(), "--device", "cpu", "--json",
                                    "--backend", "DSV4_SPARSE_MLA_SM120"});
    EXPECT_EQ(none.code, 3) << none.out;
    EXPECT_TRUE(nlohmann::json::parse(none.out)["backend"].is_null());
    const auto unknown =
        error_of({"explain", "--model", v32.path(), "--device", "cpu", "--backend", "FLASH"}, 2);
    EXPECT_EQ(unknown["field"], "--backend");
    EXPECT_NE(unknown["wanted"].get<std::string>().find("TRITON_MLA_SPARSE"), std::string::npos);
    EXPECT_EQ(error_of({"explain", "--stage", "attend", "--device", "cpu"}, 2)["field"], "--device");
    const auto dtype =
        error_of({"explain", "--model", v32.path(), "--device", "sm_90", "--kv-dtype", "fp9"}, 2);
    EXPECT_NE(dtype["wanted"].get<std::string>().find("fp8_ds_mla"), std::string::npos);
    for (const char* option : {"--kv-dtype", "--backend"})
        EXPECT_EQ(error_of({"explain", "--model", v32.path(), option, "fp8"}, 2)["field"], option);
}

TEST(CliBackends, ListsAgreeWithExplain) {
    const auto backends = json_of({"list", "backends"}, "backends");
    EXPECT_EQ(backends.size(), 8u);
    const TemporaryFile v32(kV32), flash(kGlm53), shared(v41());
    const std::map<std::string, const TemporaryFile*> models = {
        {"DeepSeek-V3.2", &v32}, {"GLM-5.3-Flash", &flash}, {"DeepSeek-V4.1", &shared}};
    std::map<std::string, int> compared, served;
    for (const auto& row : json_of({"list", "support"}, "support")) {
        const auto model = models.find(row["model"]);
        if (model == models.end()) continue;
        const Finished run = run_tool({"explain", "--json", "--model", model->second->path(), "--device",
                                       row["device"], "--kv-dtype", row["kv_cache_dtype"]});
        const auto found = nlohmann::json::parse(run.out);
        EXPECT_EQ(found["backend"], row["backend"]) << row;
        EXPECT_EQ(found["engine"], row["engine"]);
        ++compared[row["model"]];
        served[row["model"]] += !row["backend"].is_null();
    }
    EXPECT_EQ(compared, (std::map<std::string, int>{
                            {"DeepSeek-V3.2", 40}, {"DeepSeek-V4.1", 48}, {"GLM-5.3-Flash", 40}}));
    EXPECT_EQ(served, (std::map<std::string, int>{
                          {"DeepSeek-V3.2", 40}, {"DeepSeek-V4.1", 48}, {"GLM-5.3-Flash", 40}}));
}

}  // namespace

}  // namespace smla::test
