// smla verify without golden files: how many problems every kernel gets, and what happens where that fails.
#include "cli/run_tool.h"
#include "engines/run.h"

#include <gtest/gtest.h>

namespace smla::test {

namespace {

TEST(CliVerify, EveryKernelGetsItsShareOfProblems) {
    const auto found = json_of({"verify", "--seconds", "2", "--seed", "7"});
    EXPECT_EQ(found["floor"], 6);
    EXPECT_EQ(found["below_floor"], 0);
    for (const auto& row : found["kernels"]) {
        if (row.contains("skipped")) continue;
        EXPECT_GE(row["problems"], 6) << row;
        EXPECT_TRUE(row["pass"]) << row;
    }
}

TEST(CliVerify, FewerProblemsThanTheFloorFail) {
    const Finished run = run_tool(
        {"verify", "--json", "--seconds", "0.1", "--floor", "1000000", "--stage", "map", "--engine", "cpu"});
    EXPECT_EQ(run.code, 1) << run.err;
    const auto found = nlohmann::json::parse(run.out);
    EXPECT_EQ(found["below_floor"], found["kernels"].size());
    EXPECT_FALSE(found["pass"]);
    EXPECT_EQ(found["missed"], 0);
}

TEST(CliVerify, KernelsOfStrongerInstructionSetsAreSkippedByName) {
    const auto found = json_of({"verify", "--isa", "scalar", "--seconds", "0.1", "--stage", "attend"});
    size_t skipped = 0;
    for (const auto& row : found["kernels"]) {
        const std::string kernel = row["kernel"];
        const bool stronger = kernel.rfind("cpu_a", 0) == 0 || kernel.rfind("cpu_neon", 0) == 0;
        EXPECT_EQ(row.contains("skipped"), stronger) << row;
        EXPECT_EQ(row["problems"] == 0, stronger) << row;
        skipped += stronger;
    }
    EXPECT_EQ(found["skipped"], skipped);
}

// A machine without a GPU says so, not that its processor has no kernel of that name.
TEST(CliVerify, ADemandedKernelIsLookedForWhereItIs) {
    const std::string kernel = "attend=cuda_generic_attend",
                      golden = SMLA_SOURCE_DIR "/tests/goldens/D1.safetensors";
    if (!why_no_engine(SMLA_ENGINE_CUDA).empty()) {
        const std::vector<std::vector<std::string>> commands{
            {"verify"}, {"verify", "--golden", golden}, {"verify", "--golden", golden, golden},
            {"doctor"}, {"bench", "--quick"},           {"explain", "--stage", "attend"}};
        for (std::vector<std::string> words : commands) {
            words.insert(words.end(), {"--kernel", kernel});
            const auto error = error_of(words, 3);
            EXPECT_EQ(error["field"], "--kernel");
            EXPECT_EQ(error["got"], kernel);
            EXPECT_EQ(error.value("wanted", "")
                          .rfind("a kernel of the cpu engine, because the cuda engine is not available (", 0),
                      0u)
                << error;
        }
        EXPECT_EQ(error_of({"verify", "--golden", golden, "--engine", "cpu", "--kernel", kernel}, 2)["field"],
                  "--kernel");
        return;
    }
    const Finished run =
        run_tool({"verify", "--stage", "attend", "--kernel", kernel, "--seconds", "0.1", "--json"});
    const auto found = nlohmann::json::parse(run.out);
    for (const auto& row : found.value("kernels", nlohmann::json::array()))
        EXPECT_EQ(row["kernel"].get<std::string>().rfind("cuda_", 0), 0u) << row;
}

TEST(CliVerify, AProblemRunsAgainByItsName) {
    const auto twice = [] {
        auto found =
            json_of({"verify", "--seed", "5", "--stage", "attend", "--problem", "cpu_scalar_f32_attend/3"});
        found.erase("seconds");
        return found;
    };
    const auto found = twice();
    EXPECT_EQ(found["problems"], 1);
    EXPECT_GE(found["runs"], 3);  // the reference, the kernel itself, the generic one
    EXPECT_EQ(found, twice());
    EXPECT_EQ(error_of({"verify", "--problem", "17"}, 2)["field"], "--problem");
    EXPECT_EQ(error_of({"verify", "--problem", "no_kernel/17"}, 2)["field"], "--problem");
    EXPECT_EQ(error_of({"verify", "--problem", "reference/17"}, 2)["wanted"],
              "a kernel of a single stage; select the stage with --stage");
}

}  // namespace

}  // namespace smla::test
