// Help, versions, errors, exit codes, streams: what holds for every subcommand.
#include "cli/run_tool.h"
#include "core/cpu_features.h"
#include "core/limits.h"
#include "engines/run.h"

#include <gtest/gtest.h>
#include <smla/types.h>

#include <algorithm>
#include <cctype>
#include <sstream>

namespace smla::test {

namespace {

using testing::Test;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(CliFrame, HelpListsEverySubcommandOnStdout) {
    const Finished run = run_tool({"--help"});
    EXPECT_EQ(run.code, 0);
    EXPECT_EQ(run.err, "");
    const std::vector<std::string> names = subcommands();
    for (const char* name : {"doctor", "list", "explain", "capacity", "bench", "run", "verify", "example"})
        EXPECT_TRUE(std::count(names.begin(), names.end(), name)) << name << " in " << run.out;
    EXPECT_TRUE(has(run.out, "Exit codes: 0 ok, 1 "));
}

TEST(CliFrame, EverySubcommandHasHelpWithExamplesAndJson) {
    for (const std::string& name : subcommands()) {
        const Finished run = run_tool({name, "--help"});
        EXPECT_EQ(run.code, 0) << name;
        EXPECT_EQ(run.err, "") << name;
        EXPECT_TRUE(has(run.out, "Usage: smla " + name)) << run.out;
        EXPECT_TRUE(has(run.out, "--json")) << run.out;
        EXPECT_TRUE(has(run.out, "Examples:\n  smla " + name)) << run.out;
    }
}

TEST(CliFrame, Version) {
    const Finished run = run_tool({"--version"});
    EXPECT_EQ(run.code, 0);
    EXPECT_EQ(run.out, "smla " + std::to_string(SMLA_VERSION_MAJOR) + "." +
                           std::to_string(SMLA_VERSION_MINOR) + "." + std::to_string(SMLA_VERSION_PATCH) +
                           "\n");
    const std::string version = json_of({"--version"}, "version");
    EXPECT_EQ(version + "\n", run.out);
}

TEST(CliFrame, NoSubcommandIsAUsageError) {
    const Finished run = run_tool({});
    EXPECT_EQ(run.code, 2);
    EXPECT_EQ(run.out, "");
    EXPECT_TRUE(has(run.err, "Subcommands:"));
    const auto error = error_of({}, 2);
    EXPECT_EQ(error["field"], "subcommand");
    for (const std::string& name : subcommands()) EXPECT_TRUE(has(error["wanted"], name)) << error;
}

TEST(CliFrame, UnknownWordsAreAnsweredWithTheNearest) {
    const auto subcommand = error_of({"capactiy"}, 2);
    EXPECT_EQ(subcommand["got"], "capactiy");
    EXPECT_TRUE(has(subcommand["wanted"], "did you mean capacity?")) << subcommand;
    const auto option = error_of({"capacity", "--model", "x", "--contxt=5"}, 2);
    EXPECT_EQ(option["field"], "option");
    EXPECT_EQ(option["got"], "--contxt");
    EXPECT_TRUE(has(option["wanted"], "did you mean --context?")) << option;
    const auto missing = error_of({"capacity", "--mdel", "x"}, 2);  // which also leaves out --model
    EXPECT_EQ(missing["got"], "--mdel");
    EXPECT_TRUE(has(missing["wanted"], "did you mean --model?")) << missing;
    const auto far = error_of({"list", "--qqqqqqqqq"}, 2);
    EXPECT_FALSE(has(far["wanted"], "did you mean")) << far;
    for (const std::string dashes : {"---", "-----", "------"})
        for (const std::vector<std::string>& words : {std::vector{dashes}, {"list", dashes}})
            EXPECT_FALSE(has(error_of(words, 2)["wanted"], "did you mean")) << dashes;
}

TEST(CliFrame, ReportSaysWhereItIs) {
    const auto report = error_of({"report", "--model", "config.json", "-o", "x.html"}, 2);
    EXPECT_EQ(report["got"], "report");
    EXPECT_TRUE(has(report["wanted"], "python -m smla report")) << report;
    EXPECT_FALSE(has(error_of({"list", "report"}, 2)["wanted"], "python")) << "an argument of another name";
    EXPECT_TRUE(has(run_tool({"--help"}).out, "python -m smla report"));
}

TEST(CliFrame, UnknownOptionOfEverySubcommandExitsWithTwo) {
    for (const std::string& name : subcommands()) {
        const Finished run = run_tool({name, "--engin", "cpu", "--no-such-option"});
        EXPECT_EQ(run.code, 2) << name;
        EXPECT_EQ(run.out, "") << name;
        EXPECT_TRUE(has(run.err, "smla: error: ")) << run.err;
    }
}

TEST(CliFrame, WrongValuesNameOptionGotAndWanted) {
    const auto threads = error_of({"doctor", "--threads", "many"}, 2);
    EXPECT_EQ(threads["field"], "--threads");
    EXPECT_EQ(threads["got"], "many");
    const int cores = usable_cores();
    EXPECT_EQ(threads["wanted"], "a whole number, 0 to " + std::to_string(8 * cores) +
                                     " (8 per core; this process may use " + std::to_string(cores) +
                                     (cores == 1 ? " core)" : " cores)"));
    for (const std::string bad : {"-1", "4097", "1.5", "0x10", "99999999999999999999"})
        EXPECT_EQ(error_of({"doctor", "--threads", bad}, 2)["got"], bad);
    const std::string most = std::to_string(8 * cores), more = std::to_string(8 * cores + 1);
    EXPECT_EQ(run_tool({"doctor", "--no-self-test", "--threads", most}).code, 0);
    for (const char* command : {"doctor", "bench", "verify"})
        EXPECT_EQ(error_of({command, "--threads", more}, 2)["got"], more) << command;
    const Finished variable =
        run_tool({"doctor", "--no-self-test"}, {.environment = {"SMLA_THREADS=" + more}});
    EXPECT_TRUE(has(variable.err, "SMLA_THREADS: got " + more)) << variable.err;
    const auto isa = error_of({"doctor", "--isa", "avx513"}, 2);
    EXPECT_EQ(isa["field"], "--isa");
    EXPECT_TRUE(has(isa["wanted"], "did you mean avx512?")) << isa;
    EXPECT_EQ(error_of({"doctor", "--engine", "gpu"}, 2)["field"], "--engine");
    EXPECT_EQ(error_of({"doctor", "--kernel", "attend=nothing"}, 2)["field"], "--kernel");
    EXPECT_EQ(error_of({"list", "nothing"}, 2)["got"], "nothing");
}

// The result is that of the name as it is listed.
TEST(CliFrame, NamesAreAcceptedInAnyCase) {
    const std::string trace = SMLA_SOURCE_DIR "/examples/traces/mixed.csv";
    const std::vector<std::string> call{"explain", "--stage", "attend"}, v32{"explain", "--model", "glm-5"};
    const struct {
        std::vector<std::string> words;
        std::string option, value;
    } cases[] = {{{"list"}, "", "formats"},
                 {{"doctor", "--no-self-test"}, "--engine", "reference"},
                 {{"doctor", "--no-self-test"}, "--isa", "scalar"},
                 {{"explain"}, "--stage", "select"},
                 {call, "--kv-format", "bf16"},
                 {call, "--kv-format", "auto"},
                 {call, "--extra-format", "none"},
                 {call, "--extra-format", "row_bf16"},
                 {call, "--queries", "f32"},
                 {call, "--out", "f32"},
                 {{"explain", "--stage", "project"}, "--weights", "f32"},
                 {{"explain", "--stage", "score"}, "--index-format", "index_mxfp4_68"},
                 {{"explain"}, "--model", "glm-5"},
                 {v32, "--kv-format", "row_bf16"},
                 {v32, "--index-format", "auto"},
                 {v32, "--device", "PRO-6000"},
                 {{"explain", "--model", "glm-5", "--device", "sm_90"}, "--kv-dtype", "fp8_ds_mla"},
                 {{"explain", "--model", "glm-5", "--device", "sm_90"}, "--backend", "TRITON_MLA_SPARSE"},
                 {{"capacity", "--model", "glm-5"}, "--kv-format", "bf16"},
                 {{"capacity", "--model", "glm-5"}, "--index-format", "row_bf16"},
                 {{"capacity", "--model", "glm-5"}, "--device", "h200"},
                 {{"capacity", "--model", "glm-5"}, "--memory", "80GiB"},
                 {{"bench", "--list"}, "--suite", "hopper"},
                 {{"bench", "--list", "--suite", "hopper"}, "--case", "select"}};
    for (const auto& each : cases) {
        std::string other;
        for (const char c : each.value) {
            const auto letter = static_cast<unsigned char>(c);
            other += char(std::islower(letter) ? std::toupper(letter) : std::tolower(letter));
        }
        std::vector<std::string> listed = each.words, changed = each.words;
        if (!each.option.empty()) listed.push_back(each.option), changed.push_back(each.option);
        listed.push_back(each.value), changed.push_back(other);
        auto wanted = json_of(listed), got = json_of(changed);
        for (auto* document : {&wanted, &got}) document->erase("memory_available_bytes");
        EXPECT_EQ(got, wanted) << each.option << " " << other;
    }
    EXPECT_EQ(
        run_tool({"bench", "--quick", "--seconds", "0.01", "--stage", "ATTEND", "--format", "BF16"}).code, 0);
    EXPECT_EQ(run_tool({"run", "--serve", trace, "--backend", "flashmla_sparse", "--kv-dtype", "AUTO"}).code,
              0);
    EXPECT_EQ(run_tool({"verify", "--stage", "MAP", "--seconds", "0.01", "--floor", "1"}).code, 0);
}

TEST(CliFrame, NumbersInErrorsAreWholeAndHaveUnits) {
    const auto memory = error_of({"capacity", "--model", "glm-5", "--memory", "80Gx"}, 2);
    EXPECT_EQ(
        memory["wanted"],
        "a size such as 80GiB, at most 1000000000 GiB; units are MiB, GiB, TiB (or M, G, T), MB, GB, TB; "
        "no unit means GiB");
    EXPECT_EQ(json_of({"capacity", "--model", "glm-5", "--memory", "80Gi"}, "memory_bytes"),
              80.0 * (1 << 30));
    EXPECT_EQ(error_of({"run", "x", "--scratch-mib", "1e12"}, 2)["wanted"],
              "a number of MiB, 0 to 1073741824");
    EXPECT_EQ(error_of({"bench", "--seconds", "0"}, 2)["wanted"],
              "a number of seconds above 0, at most 1000000");
    for (const std::string& command : subcommands())
        for (const HelpOption& option : options_of(command)) {
            if (option.type != "INT" && option.type != "UINT" && option.type != "FLOAT") continue;
            const std::string error = run_tool({command, option.name, "x"}).err;
            EXPECT_TRUE(has(error, option.name + ": got x, wanted a ")) << error;
            for (const char* power : {"e+0", "e+1"})
                EXPECT_FALSE(has(error, power)) << command << " " << option.name << ": " << error;
        }
}

TEST(CliFrame, ErrorsHoldNoControlBytes) {
    const std::string bytes = std::string("0,\033[31m") + '\0' + "\xc2\x9b\x7f,5,0";
    const TemporaryFile trace("arrival,prompt,output,shared\n" + bytes + "\n");
    const Finished run = run_tool({"run", "--serve", trace.path()});
    EXPECT_TRUE(has(run.err, "got \\x1b[31m\\x00\xc2\\x9b\\x7f, wanted 1 to ")) << run.err;
}

TEST(CliFrame, EnvironmentStandsForOptions) {
    const auto run = [](const char* variable) {
        return run_tool({"doctor", "--no-self-test", "--json"}, {.environment = {variable}});
    };
    const Finished scalar = run("SMLA_ISA=scalar");
    EXPECT_TRUE(has(scalar.out, "cpu scalar")) << scalar.out;
    EXPECT_TRUE(has(run("SMLA_ENGINE=reference").out, "reference, 1 thread"));
    EXPECT_TRUE(has(run("SMLA_THREADS=1").out, ", 1 thread"));
    EXPECT_TRUE(has(run("SMLA_CBLAS=").out, "\"cblas\": null"));
}

// What gave a wrong value is named: a variable, or the option that is stronger.
TEST(CliFrame, AWrongVariableOfTheEnvironmentIsNamed) {
    const auto refused = [](const std::string& option, const std::string& variable,
                            const std::string& value) {
        const Finished run =
            run_tool({"doctor", "--json", option}, {.environment = {variable + "=" + value}});
        const auto error = nlohmann::json::parse(run.out, nullptr, false)["error"];
        EXPECT_EQ(run.code, error["exit_code"]) << run.out << run.err;
        EXPECT_TRUE(has(run.err, "smla: error: " + error["field"].get<std::string>() + ": ")) << run.err;
        EXPECT_TRUE(has(error["got"], value)) << run.out;
        return error["field"].get<std::string>();
    };
    const std::string foreign = best_isa() == SMLA_ISA_NEON ? "avx2" : "neon";
    const struct {
        std::string option, variable, value;
    } cases[] = {{"--engine", "SMLA_ENGINE", "gpu"},    {"--threads", "SMLA_THREADS", "x"},
                 {"--threads", "SMLA_THREADS", "5000"}, {"--kernel", "SMLA_KERNEL", "attend=none"},
                 {"--kernel", "SMLA_KERNEL", "none"},   {"--isa", "SMLA_ISA", "avx9"},
                 {"--isa", "SMLA_ISA", foreign}};
    for (const auto& each : cases) {
        EXPECT_EQ(refused("--no-self-test", each.variable, each.value), each.variable);
        EXPECT_EQ(refused(each.option + "=" + each.value, each.variable, each.value), each.option);
    }
    EXPECT_EQ(refused("--isa=auto", "SMLA_ISA", foreign), "SMLA_ISA");
    if (why_no_engine(SMLA_ENGINE_CUDA).empty()) return;
    EXPECT_EQ(refused("--no-self-test", "SMLA_ENGINE", "cuda"), "SMLA_ENGINE");
}

TEST(CliFrame, AVariableThatAnOptionOverridesIsNotRead) {
    const struct {
        std::string variable, option, value;
    } cases[] = {{"SMLA_ENGINE", "--engine", "cpu"},
                 {"SMLA_THREADS", "--threads", "1"},
                 {"SMLA_ISA", "--isa", "scalar"},
                 {"SMLA_KERNEL", "--kernel", "norm=cpu_generic_norm"}};
    for (const auto& each : cases) {
        const std::vector<std::string> environment{each.variable + "=x"};
        const Finished run =
            run_tool({"doctor", "--no-self-test", each.option, each.value}, {.environment = environment});
        EXPECT_EQ(run.code, 0) << each.variable << run.err;
        EXPECT_EQ(run_tool({"list", "formats"}, {.environment = environment}).code, 0) << each.variable;
    }
    const Finished device = run_tool({"doctor", "--device", "0"}, {.environment = {"SMLA_ENGINE=x"}});
    EXPECT_TRUE(device.code == 0 || has(device.err, "--device: got 0, wanted a GPU")) << device.err;
}

TEST(CliFrame, DoctorNamesTheKernelsOfOpenblas) {
    const auto run = [](const char* core) {
        return run_tool({"doctor", "--no-self-test"}, {.environment = {core}}).out;
    };
    const std::string old = run("OPENBLAS_CORETYPE=Haswell");
    if (!has(old, "libopenblas")) GTEST_SKIP() << "no OpenBLAS here";
    if (!has(old, "Haswell kernels")) GTEST_SKIP() << "an OpenBLAS of one processor only";
    const bool avx512 = best_isa() >= SMLA_ISA_AVX512 && best_isa() <= SMLA_ISA_AMX;
    EXPECT_EQ(has(old, "OPENBLAS_CORETYPE=SkylakeX selects newer ones"), avx512) << old;
    const std::string oldest = run("OPENBLAS_CORETYPE=Prescott");
    const bool avx2 = best_isa() >= SMLA_ISA_AVX2 && best_isa() <= SMLA_ISA_AMX;
    EXPECT_EQ(has(oldest, avx512 ? "Prescott kernels: OPENBLAS_CORETYPE=SkylakeX selects newer ones"
                                 : "Prescott kernels: OPENBLAS_CORETYPE=Haswell selects newer ones"),
              avx2)
        << oldest;
    if (!avx512) return;
    const std::string modern = run("OPENBLAS_CORETYPE=SkylakeX");
    EXPECT_TRUE(has(modern, "SkylakeX kernels\n")) << modern;
}

TEST(CliFrame, OptionsAreStrongerThanTheEnvironment) {
    const Finished run = run_tool({"doctor", "--no-self-test", "--engine", "cpu", "--isa", "scalar"},
                                  {.environment = {"SMLA_ENGINE=reference", "SMLA_ISA=avx2"}});
    EXPECT_TRUE(has(run.out, "cpu scalar")) << run.out << run.err;
}

TEST(CliFrame, ColourAndProgressOnATerminalOnly) {
    const std::vector<std::string> words{"doctor", "--isa", "scalar"};
    const Finished piped = run_tool(words), terminal = run_tool(words, {.terminal = true});
    EXPECT_EQ(piped.err, "");
    EXPECT_FALSE(has(piped.out, "\033"));
    EXPECT_TRUE(has(terminal.out, "\033[32mPASS\033[0m")) << terminal.out;
    EXPECT_TRUE(has(terminal.err, "100 %")) << terminal.err;
    const Finished plain = run_tool(words, {.environment = {"NO_COLOR=1"}, .terminal = true});
    EXPECT_FALSE(has(plain.out, "\033"));
    const Finished empty = run_tool(words, {.environment = {"NO_COLOR="}, .terminal = true});
    EXPECT_TRUE(has(empty.out, "\033"));
}

}  // namespace

}  // namespace smla::test
