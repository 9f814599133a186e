// smla bench: figures that follow from each other, right results while measuring.
#include "cli/run_tool.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

namespace smla::test {

namespace {

// attend rounds softmax weights and outputs to bf16, each by at most 2^-8; score sums 128 products and 64
// heads in f32 (growing with the root); select has one right answer.
const std::map<std::string, double> kLimits = {
    {"attend", 2.0 / 256}, {"decode", 2.0 / 256}, {"score", 2e-6}, {"score_select", 2e-6}, {"select", 0}};

TEST(CliBench, QuickRunHasEveryCase) {
    const auto found = json_of({"bench", "--quick", "--seconds", "0.01"});
    std::set<std::string> stages;
    for (const auto& row : found["results"]) {
        stages.insert(row["stage"]);
        EXPECT_GT(row["ms"], 0) << row;
        EXPECT_GE(row["repeats"], 5) << row;
        EXPECT_NE(row["case"], "");
        const auto limit = kLimits.find(row["stage"]);
        if (limit != kLimits.end() && !row["part"]) {
            EXPECT_LE(row["error"], limit->second) << row;
        }
        EXPECT_EQ(row["kernel"].is_string(), row["stage"] != "decode" && row["stage"] != "sum") << row;
    }
    for (const char* stage :
         {"attend", "score", "select", "score_select", "metadata", "decode", "absorb", "compress"})
        EXPECT_TRUE(stages.count(stage)) << stage;
}

TEST(CliBench, FiguresFollowFromTheTime) {
    for (const auto& row : json_of(
             {"bench", "--quick", "--case", "attend", "--seconds", "0.01", "--isa", "scalar"}, "results")) {
        if (row["case"] != "V3.2 T1 H16 K2048 fp8_656") continue;
        const double seconds = row["ms"].get<double>() * 1e-3;
        EXPECT_NEAR(row["gflops"].get<double>() * seconds, 2e-9 * 16 * 2048 * (576 + 512), 1e-9);
        EXPECT_NEAR(row["gbytes_per_second"].get<double>() * seconds, 1e-9 * 2048 * 656, 1e-12);
        return;
    }
    FAIL();
}

TEST(CliBench, DecodeStepsOfSeveralTokensStandBesideTheSumOfTheirStages) {
    const auto rows = json_of(
        {"bench", "--quick", "--case", "decode", "--seconds", "0.01", "--tokens", "3", "--context", "300"},
        "results");
    std::map<std::string, double> steps, sums, stages;
    for (const auto& row : rows) {
        EXPECT_NE(row["case"].get<std::string>().find(", 3 tokens, context 300"), std::string::npos) << row;
        auto& to = row["stage"] == "decode" ? steps : row["stage"] == "sum" ? sums : stages;
        to[row["case"]] += row["ms"].get<double>();
        if (&to == &steps) {
            EXPECT_LE(row["error"], kLimits.at("decode")) << row;
        }
    }
    EXPECT_EQ(steps.size(), 3u);
    for (const auto& [step, ms] : steps) EXPECT_NEAR(sums[step], stages[step], 1e-9 * stages[step]) << step;
    EXPECT_EQ(error_of({"bench", "--case", "attend", "--tokens", "3"}, 2)["field"], "--tokens");
}

TEST(CliBench, OneThreadIsTimedByItsProcessorTime) {
    const auto one = json_of({"bench", "--quick", "--case", "select", "--threads", "1", "--seconds", "0.01"});
    EXPECT_EQ(one["clock"], "processor time");
    const auto two = json_of({"bench", "--quick", "--case", "select", "--threads", "2", "--seconds", "0.01"});
    EXPECT_EQ(two["clock"], "wall time");
    EXPECT_EQ(one["results"].size(), 1u);
}

TEST(CliBench, ChecksIndicesWhenAsked) {
    const auto without = json_of({"bench", "--quick", "--case", "select", "--seconds", "0.01"});
    EXPECT_EQ(without["check_indices"], false);
    const auto with =
        json_of({"bench", "--quick", "--case", "select", "--seconds", "0.01", "--check-indices"});
    EXPECT_EQ(with["check_indices"], true);
    EXPECT_EQ(with["results"][0]["error"], 0) << with;
}

TEST(CliBench, MetadataOfEveryFamilyAndKindOfLayer) {
    std::set<std::pair<std::string, std::string>> found;
    for (const auto& row :
         json_of({"bench", "--quick", "--case", "metadata", "--seconds", "0.01"}, "results")) {
        const std::string name = row["case"];
        EXPECT_GT(row["ms"], 0) << row;
        found.insert({row["kernel"], name.substr(0, name.find(','))});
    }
    EXPECT_EQ(found, (std::set<std::pair<std::string, std::string>>{
                         {"FLASHMLA_SPARSE", "V3.2"},
                         {"FLASHMLA_SPARSE_DSV4", "V4 window"},
                         {"FLASHMLA_SPARSE_DSV4", "V4 ratio 4"},
                         {"FLASHMLA_SPARSE_DSV4", "V4 ratio 128"},
                         {"FLASHMLA_SPARSE_DSV41", "V4.1 window"},
                         {"FLASHMLA_SPARSE_DSV41", "V4.1 ratio 1"},
                         {"FLASHMLA_SPARSE_DSV41", "V4.1 ratio 2"},
                         {"FLASHINFER_MLA_SPARSE_DSV41", "V4.1 FlashInfer window"},
                         {"FLASHINFER_MLA_SPARSE_DSV41", "V4.1 FlashInfer ratio 1"},
                         {"FLASHINFER_MLA_SPARSE_DSV41", "V4.1 FlashInfer ratio 2"}}));
}

TEST(CliBench, HostTimesOfCallsStandBesideTheirBars) {
    const TemporaryFile saved("old");
    const auto found = json_of({"bench", "--case", "host", "--quick", "--seconds", "0.01", "--threads", "1",
                                "--save", saved.path()});
    EXPECT_EQ(found, nlohmann::json::parse(std::ifstream(saved.path())));
    EXPECT_NE(found["method"], "");
    EXPECT_GE(found["machine"]["cores"], 1);
    std::set<std::string> calls;
    for (const auto& row : found["host"]) {
        const std::string call = row["call"];
        calls.insert(call);
        EXPECT_GT(row["median_us"], 0) << row;
        EXPECT_LE(row["median_us"], row["p90_us"]) << row;
        EXPECT_GE(row["calls"], 200) << row;
        const bool stage =
            call != "smla_layer_forward" && call != "smla_session_forward" && call != "smla_plan_build";
        EXPECT_EQ(row["bar_us"].is_null(), !stage) << row;  // the bar of a step is a GPU's
        if (!stage) continue;
        EXPECT_DOUBLE_EQ(row["bar_us"], 1.5) << row;
        EXPECT_EQ(row["within_bar"].get<bool>(), row["median_us"] <= row["bar_us"]) << row;
    }
    for (const char* call :
         {"smla_attend", "smla_score", "smla_select", "smla_merge", "smla_write_kv", "smla_rope", "smla_map",
          "smla_plan_build", "smla_layer_forward", "smla_session_forward"})
        EXPECT_TRUE(calls.count(call)) << call;
}

TEST(CliBench, SavedDocumentIsTheOneThatJsonPrints) {
    const TemporaryFile saved("old");
    const Finished run =
        run_tool({"bench", "--quick", "--case", "select", "--seconds", "0.01", "--save", saved.path()});
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_NE(run.out.find("select"), std::string::npos);
    const auto document = nlohmann::json::parse(std::ifstream(saved.path()));
    EXPECT_EQ(document["results"].size(), 1u);
    EXPECT_NE(document["method"].get<std::string>().find("median"), std::string::npos);
    EXPECT_NE(document["machine"]["cpu"], "");
    const auto error = error_of({"bench", "--quick", "--case", "select", "--save", "/no/such/folder/x"}, 2);
    EXPECT_EQ(error["status"], "io error");
}

TEST(CliBench, ASuiteStandsBesideItsPeers) {
    const auto found = json_of({"bench", "--suite", "hopper", "--quick", "--seconds", "0.01"});
    EXPECT_GT(found["product_tflops"], 0);
    EXPECT_NE(found["product_kernel"], "");
    EXPECT_LE(found["product_error"], 0.01);  // of bf16
    EXPECT_EQ(found["product_tflops_of_targets"], 783);
    std::vector<std::string> cases;
    for (const auto& row : found["results"]) {
        cases.push_back(row["case"]);
        const double us = row["us"], peer = row["peer_us"], target = row["target_us"];
        EXPECT_GT(us, 0) << row;
        EXPECT_GT(row["sustained_us"], 0) << row;
        EXPECT_NEAR(row["times_as_fast"].get<double>() * us, peer, 1e-6 * peer) << row;
        EXPECT_EQ(row["reached"], us <= target) << row;
        EXPECT_LE(row["error"], kLimits.at(row["stage"])) << row;
    }
    EXPECT_EQ(cases, (std::vector<std::string>{"decode b1 sq1 H128 K2048", "decode V4 b2 sq2 H64 K128+512",
                                               "T1 N131072 k2048"}));
    EXPECT_EQ(error_of({"bench", "--suite", "ampere"}, 2)["field"], "--suite");
}

TEST(CliBench, ASuiteOfAGpuIsRefusedOnACpu) {
    EXPECT_EQ(error_of({"bench", "--suite", "hopper", "--engine", "cpu"}, 3)["field"], "--suite");
}

TEST(CliBench, ASuiteIsListedWithoutRunning) {
    std::map<std::string, int> stages;
    const auto cases = json_of({"bench", "--suite", "hopper", "--list"}, "results");
    for (const auto& each : cases) {
        ++stages[each["stage"]];
        EXPECT_GE(each["peer_us"], each["target_us"]) << each;
        EXPECT_FALSE(each.contains("us"));
    }
    EXPECT_EQ(stages,
              (std::map<std::string, int>{{"attend", 25}, {"score", 8}, {"select", 5}, {"score_select", 1}}));
    EXPECT_EQ(cases[0]["case"], "decode b128 sq2 H128 K2048");
    EXPECT_EQ(cases[19]["case"], "prefill T4096 H128 576 K2048 of 131072");
    EXPECT_EQ(error_of({"bench", "--list"}, 2)["field"], "--list");
    const auto select = json_of({"bench", "--suite", "hopper", "--list", "--case", "select"}, "results");
    EXPECT_EQ(select.size(), 5u);
    for (const auto& each : select) EXPECT_EQ(each["stage"], "select");
    EXPECT_EQ(error_of({"bench", "--suite", "hopper", "--list", "--case", "decode"}, 2)["field"], "--case");
}

TEST(CliBench, UnknownCase) { EXPECT_EQ(error_of({"bench", "--case", "atend"}, 2)["field"], "--case"); }

}  // namespace

}  // namespace smla::test
