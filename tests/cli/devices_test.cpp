// --device of every subcommand: a GPU's number, or for `explain --model` a device by name. What is neither is
// refused, and nothing is answered for the CPU instead.
#include "cli/run_tool.h"
#include "engines/run.h"
#include "model/configs.h"

#include <gtest/gtest.h>

namespace smla::test {

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string kTrace = SMLA_SOURCE_DIR "/examples/traces/mixed.csv",
                  kGolden = SMLA_SOURCE_DIR "/tests/goldens/D1.safetensors";
const std::vector<std::vector<std::string>> kByNumber = {
    {"doctor", "--no-self-test"},
    {"explain", "--stage", "attend"},
    {"bench", "--quick", "--seconds", "0.01", "--case", "select"},
    {"bench", "--quick", "--seconds", "0.01", "--case", "host"},
    {"bench", "--quick", "--seconds", "0.01", "--suite", "hopper"},
    {"run", "--serve", kTrace, "--backend", "FLASHMLA_SPARSE"},
    {"run", "folder", "--hidden", "x", "--out", "y"},
    {"demo", "folder"},
    {"verify", "--seconds", "0.01", "--stage", "map"},
    {"verify", "--golden", kGolden}};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

TEST(CliDevices, EverySubcommandWithTheOptionIsAmongThese) {
    std::set<std::string> tested;
    for (const auto& words : kByNumber) tested.insert(words[0]);
    for (const std::string& command : subcommands()) {
        bool takes = false;
        for (const HelpOption& option : options_of(command))
            takes |= option.name == "--device" && command != "capacity";  // only a name there
        EXPECT_EQ(takes, tested.count(command) > 0) << command;
    }
}

TEST(CliDevices, NumbersSelectTheCudaEngine) {
    const bool gpu = why_no_engine(SMLA_ENGINE_CUDA).empty();
    for (const auto& command : kByNumber) {
        for (const char* device : {"0", "3", "90", "1023"}) {
            if (gpu && device == std::string("0")) continue;  // there may be any number of GPUs
            const auto error = error_of(with(command, {"--device", device}), gpu ? 2 : 3);
            EXPECT_EQ(error["field"], "--device") << command[0];
            EXPECT_EQ(error["got"], device) << command[0];
            if (!gpu) {
                EXPECT_TRUE(has(error["wanted"], "a GPU (")) << error;
            }
        }
        for (const char* engine : {"cpu", "reference"}) {
            const auto error = error_of(with(command, {"--device", "0", "--engine", engine}), 2);
            EXPECT_EQ(error["field"], "--device") << command[0];
            EXPECT_TRUE(has(error["wanted"], "--engine cuda")) << error;
        }
    }
}

// Without --engine, a command runs on the GPU if there is one, and reports this in the first line. Options
// and variables of the CPU select the CPU.
TEST(CliDevices, AGpuIsUsedIfThereIsOne) {
    const bool gpu = why_no_engine(SMLA_ENGINE_CUDA).empty();
    const std::vector<std::string> command{"doctor", "--no-self-test"};
    const auto engine = [](const nlohmann::json& found) {
        const std::string runs_on = found["runs_on"];
        return runs_on.substr(0, runs_on.find_first_of(", "));
    };
    EXPECT_EQ(engine(json_of(command)), gpu ? "cuda" : "cpu");
    EXPECT_EQ(engine(json_of(with(command, {"--threads", "1"}))), "cpu");
    EXPECT_EQ(engine(json_of(with(command, {"--isa", "scalar"}))), "cpu");
    EXPECT_EQ(engine(json_of(with(command, {"--engine", "reference"}))), "reference");
    const Finished shown = run_tool(command), chosen = run_tool(with(command, {"--engine", "cpu"}));
    EXPECT_EQ(shown.err.rfind("smla: runs on the GPU (cuda", 0) == 0, gpu) << shown.err;
    EXPECT_EQ(chosen.err, "");
}

TEST(CliDevices, WhatIsNoNumberIsRefused) {
    for (const auto& command : kByNumber)
        for (const char* device : {"", "-1", "1024", "4294967296", "sm_90", "sm_999", "cpu", "cuda", "cuda:0",
                                   "cuda:7", "0x0", "1.0", " 0", "H100", "\x1b[31m"})
            EXPECT_EQ(error_of(with(command, {"--device", device}), 2)["field"], "--device")
                << command[0] << " --device '" << device << "'";
}

TEST(CliDevices, ExplainTakesNamesOfDevicesThatKernelsRunOn) {
    const TemporaryFile v32(kV32);
    const std::vector<std::string> command{"explain", "--model", v32.path(), "--device"};
    for (const char* device : {"cpu", "sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90", "sm_100",
                               "sm_103", "sm_120", "sm_121"})
        EXPECT_EQ(json_of(with(command, {device}), "device"), device);
    for (const char* device : {"sm_70",   "sm_75",  "sm_79",  "sm_81",  "sm_91",
                               "sm_110",  "sm_119", "sm_122", "sm_999", "sm_",
                               "sm_9x",   "sm_090", "H1000",  "cuda",   "cuda:0",
                               "cuda:7",  "gpu",    "-1",     "1024",   "99999999999999999999",
                               "\x1b[31m"}) {
        const auto error = error_of(with(command, {device}), 2);
        EXPECT_EQ(error["field"], "--device") << device;
        EXPECT_TRUE(has(error["wanted"], "sm_90")) << device;
        EXPECT_LT(error["message"].get<std::string>().size(), 300u);
    }
    const std::vector<std::pair<const char*, const char*>> products = {
        {"A100", "sm_80"},  {"a6000", "sm_86"},     {"L40", "sm_89"},   {"4090", "sm_89"},
        {"H100", "sm_90"},  {"h200", "sm_90"},      {"H20", "sm_90"},   {"B200", "sm_100"},
        {"5090", "sm_120"}, {"pro-6000", "sm_120"}, {"gb10", "sm_121"}, {"SM_90", "sm_90"},
        {"CPU", "cpu"}};
    for (const auto& [product, capability] : products)
        EXPECT_EQ(json_of(with(command, {product}), "device"), capability) << product;
    const auto near = error_of(with(command, {"H10"}), 2);
    EXPECT_TRUE(
        has(near["wanted"], "A100, A6000, L40, 4090, H100, H200, H20, B200, 5090, PRO-6000, GB10, cpu"))
        << near;
    EXPECT_TRUE(has(near["wanted"], "; did you mean H20?") || has(near["wanted"], "; did you mean H100?"))
        << near;
    if (why_no_engine(SMLA_ENGINE_CUDA).empty()) return;
    for (const char* device : {"0", "3", "90"})
        EXPECT_EQ(error_of(with(command, {device}), 3)["field"], "--device") << device;
}

}  // namespace

}  // namespace smla::test
