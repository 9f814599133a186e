// The environment variables of `smla list environment`: each value that is not accepted is an error that
// names the variable, and each accepted one is not.
#include "cli/run_tool.h"
#include "model/configs.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <set>

namespace smla::test {

namespace {

struct Use {
    std::vector<std::string> wrong, right;
    std::vector<std::string> command{"doctor", "--no-self-test", "--json"};
};

// Those that another test walks: tests/python/test_environment.py; EnvironmentOfTheLibraries (needs a GPU).
const std::set<std::string> kElsewhere{"SMLA_LIBRARY", "SMLA_TOOL", "SMLA_CUBLASLT"};

TEST(CliEnvironment, EveryVariableIsChecked) {
    const TemporaryFile config(kV32);
    const TemporaryFolder folder;
    const std::string fifo = folder.path() + "/fifo";
    ASSERT_EQ(mkfifo(fifo.c_str(), 0777), 0);
    const std::vector<std::string> explain{"explain",  "--model", config.path(),
                                           "--device", "sm_90",   "--json"};
    const std::map<std::string, Use> uses{
        {"SMLA_ENGINE", {{"gpu", "auto, cpu", "cp"}, {"", "auto", "reference", "cpu", "CPU"}}},
        {"SMLA_ISA",
         {{"avx9", "scalar,avx2", " avx2"},
          {"", "auto", "scalar", "Scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon"}}},
        {"SMLA_THREADS", {{"x", "-1", "4097", "1.5", "2 ", "99999999999"}, {"", "0", "1", "3"}}},
        {"SMLA_KERNEL",
         {{"none", "attend=none", "none=cpu_generic_attend"}, {"", "attend=cpu_generic_attend"}}},
        {"SMLA_BACKEND", {{"NOPE"}, {"", "FLASHMLA_SPARSE", "flashmla_sparse"}, explain}},
        {"SMLA_LOG", {{"x", "3", "-1", "1 "}, {"", "0", "1", "2"}}},
        {"SMLA_CBLAS", {{"/nope.so", "libc.so.6", fifo, folder.path(), "/dev/zero"}, {""}}},
        {"SMLA_STEP_GRAPHS", {{"off", "2"}, {"", "0", "1"}}},
        {"SMLA_PRETEND_CAPABILITY", {{"sm_90", "9"}, {"", "90"}}},
        {"SMLA_VLLM_INDEXER", {{"yes", "2"}, {"", "0", "1"}}},
    };
    std::set<std::string> listed, tested = kElsewhere;
    for (const auto& row : json_of({"list", "environment"}, "environment")) listed.insert(row["name"]);
    for (const auto& [name, use] : uses) {
        tested.insert(name);
        for (const std::string& value : use.wrong) {
            const Finished run = run_tool(use.command, {.environment = {name + "=" + value}, .seconds = 60});
            const auto error = nlohmann::json::parse(run.out, nullptr, false)["error"];
            EXPECT_EQ(run.code, 2) << name << "=" << value << run.out << run.err;
            EXPECT_EQ(error["field"], name) << value << run.out;
            EXPECT_LT(error["message"].get<std::string>().size(), 400u) << run.err;
        }
        for (const std::string& value : use.right) {
            const Finished run = run_tool(use.command, {.environment = {name + "=" + value}});
            const bool lacks = run.code == 3 && name == "SMLA_ISA";  // of this machine
            EXPECT_TRUE(run.code == 0 || lacks) << name << "=" << value << run.out << run.err;
        }
    }
    EXPECT_EQ(tested, listed);
}

}  // namespace

}  // namespace smla::test
