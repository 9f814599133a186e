// Wrong usage of every subcommand and option: one error that names the option, exit code 2, nothing written.
#include "cli/run_tool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

namespace smla::test {

namespace {

namespace fs = std::filesystem;

const std::string kConfig = R"({"model_type": "deepseek_v32", "hidden_size": 64, "num_attention_heads": 4,
    "q_lora_rank": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 16, "qk_rope_head_dim": 64, "v_head_dim": 16,
    "index_n_heads": 4, "index_head_dim": 128, "index_topk": 8, "rope_theta": 10000,
    "num_hidden_layers": 2})";

// One error that names the field: a line on stderr, a document on stdout.
void expect_refused(std::vector<std::string> words, const std::string& field) {
    std::string about = "smla";
    for (const std::string& word : words) about += " '" + word.substr(0, 100) + "'";
    words.insert(words.begin() + 1, "--json");
    const Finished run = run_tool(words, {.seconds = 60});
    EXPECT_EQ(run.code, 2) << about << run.err;
    EXPECT_EQ(run.err.rfind("smla: error: " + field + ": ", 0), 0u) << about << ": " << run.err;
    EXPECT_EQ(run.err.find('\n'), run.err.size() - 1) << about << ": " << run.err;
    EXPECT_LE(run.err.size(), sizeof("smla: error: ") + 300) << about << ": " << run.err;
    EXPECT_EQ(run.err.find('\x1b'), std::string::npos) << about << ": " << run.err;
    const auto document = nlohmann::json::parse(run.out, nullptr, false);
    ASSERT_TRUE(document.is_object() && document.contains("error")) << about << ": " << run.out;
    EXPECT_EQ(document["error"]["field"], field) << about;
    const bool sentence = document["error"]["wanted"] == "";  // no value is wrong
    EXPECT_EQ(run.err.find(": got ") == std::string::npos, sentence) << about << ": " << run.err;
    EXPECT_EQ("smla: error: " + document["error"].value("message", "") + "\n", run.err) << about;
}

TEST(CliUsage, AnOptionWithoutItsValueIsNamed) {
    for (const std::string& command : subcommands())
        for (const HelpOption& option : options_of(command)) {
            if (!option.type.empty()) {
                expect_refused({command, option.name}, option.name);
                expect_refused({command, option.name, "--json"}, option.name);  // and writes no such file
            } else if (option.name != "--json") {
                expect_refused({command, option.name + "=maybe"}, option.name);
            }
        }
    expect_refused({"demo"}, "folders");
    expect_refused({"capacity"}, "--model");
    expect_refused({"doctor", "--threads", "1", "--threads", "2"}, "--threads");
}

TEST(CliUsage, EmptyValues) {
    int tested = 0;
    for (const std::string& command : subcommands())
        for (const HelpOption& option : options_of(command)) {
            if (option.type.empty()) continue;
            ++tested;
            expect_refused({command, option.name + "="}, option.name);
            expect_refused({command, option.name, ""}, option.name);
        }
    EXPECT_GE(tested, 80);
    expect_refused({"list", ""}, "what");
    expect_refused({"run", ""}, "checkpoint");
    expect_refused({"demo", ""}, "folders");
}

TEST(CliUsage, NumbersThatAreNone) {
    int numbers = 0;
    for (const std::string& command : subcommands())
        for (const HelpOption& option : options_of(command)) {
            if (option.type != "INT" && option.type != "UINT" && option.type != "FLOAT") continue;
            ++numbers;
            for (const char* value :
                 {"-1", "x", "1e400", "99999999999999999999", "nan", "1,000", " 1", "\x1b[31m"})
                if (value != std::string("99999999999999999999") ||
                    (option.name != "--tolerance" && option.name != "--kv-scale"))
                    expect_refused({command, option.name, value}, option.name);
            if (option.type == "FLOAT") continue;
            for (const char* value : {"1.5", "0x10", "9223372036854775808"})
                expect_refused({command, option.name, value}, option.name);
        }
    EXPECT_GE(numbers, 45);
}

TEST(CliUsage, UnknownNames) {
    const TemporaryFile config(kConfig);
    TemporaryFolder folder;
    const std::string model = folder.path() + "/model", trace = SMLA_SOURCE_DIR "/examples/traces/mixed.csv";
    ASSERT_EQ(
        run_tool({"example", "--golden", SMLA_SOURCE_DIR "/tests/goldens/D1.safetensors", "--out", model})
            .code,
        0);
    const std::vector<std::string> explain{"explain", "--model", config.path()},
        run{"run", model, "--hidden", model + "/hidden.safetensors", "--out", folder.path() + "/y"},
        serve{"run", "--serve", trace};
    struct Case {
        std::vector<std::string> words;
        std::vector<std::string> options;
    };
    const Case cases[] = {
        {{"doctor"}, {"--engine", "--isa", "--kernel"}},
        {explain, {"--engine", "--isa", "--kernel", "--kv-format", "--index-format", "--queries"}},
        {{"explain", "--model", config.path(), "--device", "cpu"}, {"--kv-dtype", "--device"}},
        {{"explain", "--device", "cpu", "--model", config.path()}, {"--kv-format", "--weights"}},
        {{"explain"}, {"--stage"}},
        {{"explain", "--stage", "attend"},  // also those that it does not read
         {"--extra-format", "--kv-format", "--out", "--queries", "--weights", "--index-format"}},
        {{"explain", "--stage", "select"},
         {"--extra-format", "--kv-format", "--out", "--queries", "--weights", "--index-format"}},
        {{"capacity", "--model", config.path()}, {"--kv-format", "--index-format", "--device"}},
        {{"bench", "--quick"}, {"--case", "--suite", "--stage", "--engine", "--isa", "--kernel"}},
        {run,
         {"--kv-format", "--kv-writer", "--index-format", "--queries", "--chunk", "--engine", "--isa",
          "--kernel"}},
        {serve, {"--engine", "--isa", "--kernel"}},
        {{"demo", model}, {"--engine", "--isa", "--kernel"}},
        {{"verify"}, {"--stage", "--problem", "--engine", "--isa", "--kernel"}}};
    std::set<std::pair<std::string, std::string>> tested;
    for (const Case& each : cases)
        for (const std::string& option : each.options)
            for (const std::string& value : {std::string("no_such_name"), std::string(1 << 16, 'n')}) {
                std::vector<std::string> words = each.words;
                if (words.size() > 1 && words[words.size() - 2] == option) words.resize(words.size() - 2);
                words.insert(words.end(), {option, value});
                expect_refused(words, option);
                tested.emplace(words[0], option);
            }
    expect_refused({"list", "no_such_name"}, "what");
    expect_refused({"run", "--serve", trace, "--backend", "no_such_name"}, "--backend");
    expect_refused({"run", "--serve", trace, "--kv-dtype", "no_such_name"}, "--kv-dtype");
    expect_refused({"explain", "--model", config.path(), "--device", "cpu", "--backend", "none"},
                   "--backend");
    expect_refused({"explain", "--model", "no/such/model"}, "no/such/model");
    EXPECT_FALSE(fs::exists(folder.path() + "/y"));
}

// Commands that print without long work.
std::vector<std::vector<std::string>> printing(const std::string& model, const std::string& config) {
    return {{"doctor", "--no-self-test"},
            {"list"},
            {"explain", "--model", config},
            {"explain", "--model", config, "--device", "sm_90"},
            {"explain", "--stage", "attend"},
            {"capacity", "--model", config},
            {"bench", "--suite", "hopper", "--list"},
            {"run", model, "--hidden", model + "/hidden.safetensors", "--out", model + "/y.st"},
            {"demo", model},
            {"verify", "--stage", "map", "--seconds", "0.01", "--floor", "1"},
            {"example", "--golden", SMLA_SOURCE_DIR "/tests/goldens/D1.safetensors", "--out", model}};
}

// A full disk is an error. A pipe without a reader ends the process by SIGPIPE, as of other tools; where that
// signal is ignored, it is an error.
TEST(CliUsage, OutputThatCannotBeWritten) {
    const TemporaryFile config(kConfig);
    TemporaryFolder folder;
    const std::string model = folder.path() + "/model";
    std::set<std::string> tested;
    auto commands = printing(model, config.path());
    std::rotate(commands.begin(), commands.end() - 1, commands.end());  // the first makes the model
    for (std::vector<std::string> words : commands) {
        tested.insert(words[0]);
        ASSERT_EQ(run_tool(words).code, 0) << words[0];
        for (const bool json : {false, true}) {
            if (json) words.emplace_back("--json");
            SCOPED_TRACE(words[0] + (json ? " --json" : ""));
            for (const RunOptions& options :
                 {RunOptions{.stdout_file = "/dev/full"}, {.closed_stdout = true, .ignores_sigpipe = true}}) {
                const Finished run = run_tool(words, options);
                EXPECT_EQ(run.code, 4) << run.err;
                EXPECT_TRUE(run.err.ends_with("smla: error: stdout cannot be written\n")) << run.err;
            }
            const Finished ended = run_tool(words, {.closed_stdout = true});
            EXPECT_EQ(ended.signal, SIGPIPE) << ended.code << ended.err;
            EXPECT_EQ(ended.err.find("error"), std::string::npos) << ended.err;
        }
    }
    for (const std::string& command : subcommands()) EXPECT_TRUE(tested.count(command)) << command;
}

}  // namespace

}  // namespace smla::test
