// smla bench: figures that follow from each other, right results while measuring.
#include "cli/run_tool.h"
#include "engines/run.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <map>
#include <set>
#include <thread>

namespace smla::test {

namespace {

// attend rounds softmax weights and outputs to bf16, each by at most 2^-8; score sums 128 products and 64
// heads in f32 (growing with the root); select has one right answer.
const std::map<std::string, double> kLimits = {
    {"attend", 2.0 / 256}, {"decode", 2.0 / 256}, {"score", 2e-6}, {"score_select", 2e-6}, {"select", 0}};

// Outputs are rounded to bf16, unless one row has all of the softmax weight and is representable.
constexpr double kLeastError = 1e-4;

// The list has every row of the pool.
TEST(CliBench, NoRowHasAllOfTheWeightOfALongList) {
    for (const char* format : {"fp8_656", "fp8_584", "bf16"}) {
        const auto row = json_of({"bench", "--quick", "--seconds", "0.01", "--stage", "attend", "--rows",
                                  "16K", "--format", format},
                                 "results")[0];
        EXPECT_GT(row["error"], kLeastError) << row;
        EXPECT_LE(row["error"], kLimits.at("attend")) << row;
    }
}

// The rows have the peak that their percentage refers to; the last line of the text names it.
TEST(CliBench, ThePeakIsShown) {
    const std::vector<std::string> words{"bench", "--quick", "--seconds", "0.01", "--stage", "attend"};
    const auto row = json_of(words, "results")[0];
    if (row["peak_unit"].is_null()) GTEST_SKIP() << "no unit is measured for " << row["kernel"];
    EXPECT_NEAR(row["percent_of_peak"].get<double>(),
                100 * row["gflops"].get<double>() / row["peak_gflops"].get<double>(), 1e-6);
    const Finished shown = run_tool(words);
    const size_t line = shown.out.find(
        "100 % of peak, measured before and after each case: " + row["peak_unit"].get<std::string>() + " ");
    ASSERT_NE(line, std::string::npos) << shown.out;
    EXPECT_EQ(shown.out.substr(shown.out.size() - 9), " GFLOP/s\n");
    const Finished none =
        run_tool({"bench", "--quick", "--seconds", "0.01", "--case", "select", "--isa", "scalar"});
    EXPECT_EQ(none.out.find("100 % of peak"), std::string::npos) << none.out;
}

TEST(CliBench, QuickRunHasEveryCase) {
    const auto found = json_of({"bench", "--quick", "--seconds", "0.01"});
    std::set<std::string> stages;
    for (const auto& row : found["results"]) {
        stages.insert(row["stage"]);
        EXPECT_GT(row["ms"], 0) << row;
        EXPECT_NE(row["case"], "");
        if (row["stage"] != "sum") {
            EXPECT_GE(row["repeats"], 5) << row;
            EXPECT_LE(row["min_ms"], row["p10_ms"]) << row;
            EXPECT_LE(row["p10_ms"], row["ms"]) << row;
            EXPECT_LE(row["ms"], row["p90_ms"]) << row;
            EXPECT_LE(row["p90_ms"], row["max_ms"]) << row;
        }
        EXPECT_EQ(row["percent_of_peak"].is_null(), row["peak_unit"].is_null()) << row;
        const auto limit = kLimits.find(row["stage"]);
        if (limit != kLimits.end() && !row["part"]) {
            EXPECT_LE(row["error"], limit->second) << row;
        }
        if (row["stage"] == "attend" && !row["part"]) {
            EXPECT_GT(row["error"], kLeastError) << row;
        }
        EXPECT_EQ(row["kernel"].is_string(), row["stage"] != "decode" && row["stage"] != "sum") << row;
    }
    for (const char* stage : {"attend", "score", "select", "score_select", "decode", "absorb", "compress"})
        EXPECT_TRUE(stages.count(stage)) << stage;
    EXPECT_FALSE(stages.count("metadata")) << "microseconds";
    EXPECT_NE(found["runs_on"], "");
    EXPECT_GT(found["load_average"], -1);
}

// The time of a step of a model is the sum of its layers' times. V3.2 has 61 equal layers, V4-Flash 2 + 21
// + 20.
TEST(CliBench, FiguresOfAModelStandApartFromThoseOfALayer) {
    const auto found =
        json_of({"bench", "--quick", "--case", "decode", "--seconds", "0.01", "--context", "300"});
    std::map<std::string, double> steps;
    for (const auto& row : found["results"])
        if (row["stage"] == "decode") steps[row["case"]] = row["ms"];
    ASSERT_EQ(found["models"].size(), 2u);
    for (const auto& model : found["models"]) {
        const bool v32 = model["model"] == "deepseek-v3.2";
        EXPECT_EQ(model["layers"], v32 ? 61 : 43);
        const auto of = [&](const char* kind) {
            return steps.at(model["model"].get<std::string>() + " layer, " + kind + ", context 300");
        };
        const double sum =
            v32 ? 61 * of("dsa")
                : 2 * of("sliding") + 21 * of("compressed_sparse") + 20 * of("heavily_compressed 128");
        EXPECT_NEAR(model["ms"], sum, 1e-9 * sum);
    }
    const Finished shown = run_tool({"bench", "--quick", "--seconds", "0.01", "--case", "decode"});
    const size_t layer = shown.out.find("Decode steps of one layer"),
                 model = shown.out.find("Decode steps of a model");
    EXPECT_LT(layer, model);
    EXPECT_NE(model, std::string::npos) << shown.out;
}

TEST(CliBench, AShapeIsMeasured) {
    const std::vector<std::string> quick{"bench", "--quick", "--seconds", "0.01", "--stage"};
    const auto row_of = [&](std::vector<std::string> words) {
        words.insert(words.begin(), quick.begin(), quick.end());
        const auto rows = json_of(words, "results");
        EXPECT_EQ(rows.size(), 1u);
        return rows[0];
    };
    const auto attend =
        row_of({"attend", "--heads", "16", "--tokens", "4", "--rows", "2K", "--format", "fp8_656"});
    EXPECT_EQ(attend["case"], "T4 H16 K2048 fp8_656");
    const double seconds = attend["ms"].get<double>() * 1e-3;
    EXPECT_NEAR(attend["gflops"].get<double>() * seconds, 2e-9 * 4 * 16 * 2048 * (576 + 512), 1e-9);
    EXPECT_LE(attend["error"], kLimits.at("attend"));
    const auto one_head = row_of({"attend", "--heads", "1", "--rows", "64"});
    EXPECT_LE(one_head["error"], kLimits.at("attend")) << "the heads of a token alone are compared";
    const auto entries = row_of({"attend", "--format", "fp8_584", "--rows", "512"});
    EXPECT_EQ(entries["case"], "T1 H128 K512 fp8_584");
    const auto score =
        row_of({"score", "--tokens", "2", "--columns", "4K", "--format", "bf16", "--heads", "32"});
    EXPECT_EQ(score["case"], "T2 H32 N4096 row_bf16");
    EXPECT_NEAR(score["gflops"].get<double>() * score["ms"].get<double>() * 1e-3, 2e-9 * 2 * 32 * 128 * 4096,
                1e-9);
    const auto select = row_of({"select", "--columns", "4096", "--topk", "64"});
    EXPECT_EQ(select["case"], "T1 N4096 k64");
    EXPECT_EQ(select["error"], 0);
    const auto refused = [&](std::vector<std::string> words, const char* field) {
        words.insert(words.begin(), "bench");
        EXPECT_EQ(error_of(words, 2)["field"], field);
    };
    refused({"--stage", "attned"}, "--stage");
    refused({"--stage", "attend", "--case", "score"}, "--stage");
    refused({"--heads", "16"}, "--heads");
    refused({"--stage", "attend", "--columns", "64"}, "--columns");
    refused({"--stage", "attend", "--format", "fp8_665"}, "--format");
    EXPECT_EQ(error_of({"bench", "--stage", "attned"}, 2)["wanted"],
              "one of attend, score, select; did you mean attend?");
}

// The unit follows from the kernel's name, so a kernel is never compared with the peak of another instruction
// set.
TEST(CliBench, PercentOfPeakIsOfTheUnitThatTheKernelUses) {
    const std::map<std::string, std::string> units = {{"scalar", ""},
                                                      {"avx2", "f32 multiply-add, 256 bits"},
                                                      {"avx512", "f32 multiply-add, 512 bits"},
                                                      {"avx512_bf16", "vdpbf16ps"},
                                                      {"amx", "AMX bf16"}};
    for (const auto& isa : json_of({"list", "isas"}, "isas")) {
        if (!isa["available"]) continue;
        const auto found = json_of({"bench", "--quick", "--seconds", "0.01", "--threads", "1", "--isa",
                                    isa["name"], "--stage", "attend", "--tokens", "2"});
        const auto row = found["results"][0];
        const std::string wanted = units.at(isa["name"]), kernel = row["kernel"];
        if (wanted.empty()) {
            EXPECT_TRUE(row["peak_unit"].is_null()) << row;
            continue;
        }
        if (kernel.find("cpu_" + isa["name"].get<std::string>() + "_") != 0) continue;  // another is faster
        EXPECT_EQ(row["peak_unit"], wanted);
        EXPECT_GT(found["peak_gflops_of_units"][wanted], 0);
        const double peak = row["peak_gflops"], percent = row["percent_of_peak"];  // measured around the case
        EXPECT_NEAR(percent, 100 * row["gflops"].get<double>() / peak, 0.01 * percent) << row;
    }
}

// Runs spinning threads on every core while the tool checks the load.
TEST(CliBench, ABusyMachineIsReported) {
    if (why_no_engine(SMLA_ENGINE_CUDA).empty()) GTEST_SKIP() << "a GPU is measured";
    std::atomic<bool> stop = false;
    std::vector<std::thread> spinning;
    for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
        spinning.emplace_back([&] {
            while (!stop) {
            }
        });
    const std::vector<std::string> words{"bench", "--quick", "--seconds", "0.01", "--case", "select"};
    const auto found = json_of(words);
    const Finished shown = run_tool(words);
    stop = true;
    for (std::thread& each : spinning) each.join();
    EXPECT_NE(found["busy"].is_null() ? "" : found["busy"].get<std::string>().c_str(), std::string());
    EXPECT_EQ(shown.out.find("warning: this machine is busy"), 0u) << shown.out;
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
    EXPECT_EQ(steps.size(), 4u);
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

// Results are not scaled by another measurement or by a target.
TEST(CliBench, ASuiteStandsBesideItsPeers) {
    const auto found = json_of({"bench", "--suite", "hopper", "--quick", "--seconds", "0.01"});
    for (const char* scaled : {"product_tflops", "product_tflops_of_targets"})
        EXPECT_FALSE(found.contains(scaled)) << scaled;
    std::vector<std::string> cases;
    for (const auto& row : found["results"]) {
        cases.push_back(row["case"]);
        const double us = row["us"];
        EXPECT_GT(us, 0) << row;
        EXPECT_LE(row["min_us"], us) << row;
        EXPECT_GE(row["max_us"], us) << row;
        EXPECT_GT(row["sustained_us"], 0) << row;
        EXPECT_FALSE(row.contains("target_us")) << row;
        if (row["stage"] == "project") {  // measured like the other cases, without a peer
            EXPECT_TRUE(row["peer_us"].is_null() && row["times_as_fast"].is_null()) << row;
            EXPECT_NEAR(row["tflops"].get<double>() * us, 2e-6 * 256 * 256 * 256, 1e-9) << row;
            EXPECT_LE(row["error"], 0.01) << row;  // rounding error of bf16
            continue;
        }
        const double peer = row["peer_us"];
        EXPECT_NEAR(row["times_as_fast"].get<double>() * us, peer, 1e-6 * peer) << row;
        EXPECT_LE(row["error"], kLimits.at(row["stage"])) << row;
    }
    EXPECT_EQ(cases, (std::vector<std::string>{"bf16 product 256 x 256 x 256", "decode b1 sq1 H128 K2048",
                                               "decode V4 b2 sq2 H64 K128+512", "T1 N131072 k2048"}));
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
        EXPECT_EQ(each["peer_us"].is_null(), each["stage"] == "project") << each;
        EXPECT_FALSE(each.contains("us"));
    }
    EXPECT_EQ(stages, (std::map<std::string, int>{
                          {"project", 1}, {"attend", 25}, {"score", 8}, {"select", 5}, {"score_select", 1}}));
    EXPECT_EQ(cases[1]["case"], "decode b128 sq2 H128 K2048");
    EXPECT_EQ(cases[20]["case"], "prefill T4096 H128 576 K2048 of 131072");
    EXPECT_EQ(error_of({"bench", "--list"}, 2)["field"], "--list");
    const auto select = json_of({"bench", "--suite", "hopper", "--list", "--case", "select"}, "results");
    EXPECT_EQ(select.size(), 5u);
    for (const auto& each : select) EXPECT_EQ(each["stage"], "select");
    EXPECT_EQ(error_of({"bench", "--suite", "hopper", "--list", "--case", "decode"}, 2)["field"], "--case");
}

TEST(CliBench, UnknownCase) { EXPECT_EQ(error_of({"bench", "--case", "atend"}, 2)["field"], "--case"); }

}  // namespace

}  // namespace smla::test
