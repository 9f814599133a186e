// smla bench: figures that follow from each other, right results while measuring.
#include "cli/run_tool.h"

#include <gtest/gtest.h>

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
        EXPECT_EQ(row["kernel"].is_string(), row["stage"] != "decode") << row;
    }
    for (const char* stage :
         {"attend", "score", "select", "score_select", "metadata", "decode", "map", "compress"})
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

TEST(CliBench, OneThreadIsTimedByItsProcessorTime) {
    const auto one = json_of({"bench", "--quick", "--case", "select", "--threads", "1", "--seconds", "0.01"});
    EXPECT_EQ(one["clock"], "processor time");
    const auto two = json_of({"bench", "--quick", "--case", "select", "--threads", "2", "--seconds", "0.01"});
    EXPECT_EQ(two["clock"], "wall time");
    EXPECT_EQ(one["results"].size(), 1u);
}

TEST(CliBench, UnknownCase) { EXPECT_EQ(error_of({"bench", "--case", "atend"}, 2)["field"], "--case"); }

}  // namespace

}  // namespace smla::test
