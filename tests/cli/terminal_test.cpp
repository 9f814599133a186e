// What a command prints fits the terminal; a pipe and --json get everything.
#include "cli/run_tool.h"
#include "model/configs.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <set>
#include <sstream>

namespace smla::test {

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Columns on the screen: no escape sequence, no carriage return, UTF-8 counted by characters.
size_t columns_of(const std::string& line) {
    size_t columns = 0;
    for (size_t i = 0; i < line.size(); ++i) {
        if (line[i] == '\033') i = line.find('m', i);
        else columns += line[i] != '\r' && (line[i] & 0xc0) != 0x80;
    }
    return columns;
}

std::string widest(const std::string& text) {
    std::istringstream lines(text);
    std::string out;
    for (std::string line; std::getline(lines, line);)
        if (columns_of(line) > columns_of(out)) out = line;
    return out;
}

struct Files {
    TemporaryFile v32{kV32}, flash{v4_flash()};
    TemporaryFolder example;
    Files() {
        json_of({"example", "--golden", SMLA_SOURCE_DIR "/tests/goldens/D6.safetensors", "--out",
                 example.path()});
    }
    // Every command that prints a table or a list.
    std::vector<std::vector<std::string>> commands() const {
        const std::string golden = SMLA_SOURCE_DIR "/tests/goldens/D1.safetensors",
                          trace = SMLA_SOURCE_DIR "/examples/traces/mixed.csv";
        std::vector<std::vector<std::string>> out{
            {"doctor"},
            {"list"},
            {"explain", "--model", v32.path(), "--all"},
            {"explain", "--model", flash.path(), "--device", "sm_120", "--kv-dtype", "fp8"},
            {"explain", "--stage", "attend", "--all", "--isa", "scalar"},
            {"capacity", "--model", v32.path(), "--memory", "80"},
            {"capacity", "--model", "deepseek-v4-pro", "--device", "h200", "--tp", "8", "--dp", "2"},
            {"capacity", "--model", flash.path()},
            {"capacity", "--model", example.path()},
            {"bench", "--quick", "--seconds", "0.01", "--case", "select"},
            {"bench", "--quick", "--seconds", "0.01", "--case", "metadata"},
            {"bench", "--quick", "--seconds", "0.01", "--case", "decode", "--context", "300"},
            {"demo", example.path()},
            {"run", "--serve", trace, "--backend", "FLASHMLA_SPARSE"},
            {"verify", "--stage", "attend", "--seconds", "0.01", "--seed", "1"},
            {"verify", "--golden", golden}};
        for (const char* part :
             {"engines", "isas", "formats", "kernels", "models", "backends", "support", "environment"})
            out.push_back({"list", part});
        return out;
    }
};

TEST(CliTerminal, NoLineIsWiderThanTheTerminal) {
    const Files files;
    for (const std::vector<std::string>& words : files.commands())
        for (const int columns : {80, 60}) {
            std::string command;
            for (const std::string& word : words) command += " " + word;
            SCOPED_TRACE(std::to_string(columns) + " columns:" + command);
            const Finished run = run_tool(words, {.terminal = true, .columns = columns});
            EXPECT_EQ(run.code, 0) << run.err;
            EXPECT_GT(run.out.size(), 40u);
            const std::string line = widest(run.out);
            EXPECT_LE(columns_of(line), size_t(columns)) << line;
        }
}

TEST(CliTerminal, HelpIsNeverWiderThanTheTerminal) {
    std::vector<std::vector<std::string>> commands{{"--help"}, {}, {"explain"}};
    for (const std::string& name : subcommands()) commands.push_back({name, "--help"});
    for (const std::vector<std::string>& words : commands)
        for (const int columns : {100, 80, 60, 40}) {
            SCOPED_TRACE((words.empty() ? "smla" : words[0]) + " at " + std::to_string(columns));
            const Finished run = run_tool(words, {.terminal = true, .columns = columns}),
                           told = run_tool(words, {.environment = {"COLUMNS=" + std::to_string(columns)},
                                                   .terminal = true,
                                                   .columns = 300});
            const std::string text =
                run.out.empty() ? run.err.substr(0, run.err.rfind("smla: error")) : run.out;
            EXPECT_GT(text.size(), 200u);
            EXPECT_LE(columns_of(widest(text)), size_t(columns)) << widest(text);
            EXPECT_EQ(told.out, run.out);
        }
    // Line breaks do not remove text.
    const auto words_of = [](const std::string& text) {
        std::istringstream in(text);
        std::multiset<std::string> out;
        for (std::string word; in >> word;) out.insert(word);
        return out;
    };
    const Finished narrow = run_tool({"bench", "--help"}, {.terminal = true, .columns = 80});
    EXPECT_EQ(words_of(narrow.out), words_of(run_tool({"bench", "--help"}).out));
}

// The most important columns are shown at widths of 80 and 60.
TEST(CliTerminal, DecidingColumnsStay) {
    const auto header = [](const std::vector<std::string>& words, const char* first, int columns = 80) {
        const std::string out =
            run_tool(words, {.environment = {"NO_COLOR=1"}, .terminal = true, .columns = columns}).out;
        std::istringstream lines(out);
        for (std::string line; std::getline(lines, line);)
            if (line.starts_with(first)) return line;
        return "no line begins with " + std::string(first) + " in " + out;
    };
    const std::vector<std::string> bench{"bench", "--quick", "--seconds", "0.01", "--case", "attend"};
    for (const char* column : {"stage", "case", "median ms", "min", "max", "% of peak"})
        EXPECT_TRUE(has(header(bench, "stage"), column)) << column << ": " << header(bench, "stage");
    const std::vector<std::string> capacity{"capacity", "--model", "deepseek-v4-flash"};
    for (const char* column : {"layers of kind", "layers", "cache", "all layers B/token"})
        EXPECT_TRUE(has(header(capacity, "layers of kind"), column)) << header(capacity, "layers of kind");
    for (const char* column : {"device", "V3.2", "GLM-5.x", "GLM-5.3", "V4", "V4.1"})
        EXPECT_TRUE(has(header({"list", "support"}, "device"), column))
            << header({"list", "support"}, "device");
    for (const char* column : {"stage", "case", "median ms", "% of peak"})
        EXPECT_TRUE(has(header(bench, "stage", 60), column)) << column << ": " << header(bench, "stage", 60);
    for (const char* column : {"layers of kind", "cache", "all layers B/token"})
        EXPECT_TRUE(has(header(capacity, "layers of kind", 60), column)) << column;
    const std::string serve = SMLA_SOURCE_DIR "/examples/traces/mixed.csv";
    for (const char* column : {"backend", "error", "limit"})
        EXPECT_TRUE(
            has(header({"run", "--serve", serve, "--backend", "FLASHMLA_SPARSE"}, "backend", 60), column))
            << column;
}

// The lines that a terminal shows of what was written to it: carriage returns and erased ends count.
std::vector<std::string> lines_on_screen(const std::string& written) {
    std::vector<std::string> out;
    std::string line;
    size_t column = 0;
    for (size_t i = 0; i < written.size(); ++i) {
        if (written[i] == '\n') {
            out.push_back(line);
            line.clear();
            column = 0;
        } else if (written[i] == '\r') {
            column = 0;
        } else if (written[i] == '\033') {
            while (i + 1 < written.size() && std::isalpha(static_cast<unsigned char>(written[i])) == 0) ++i;
            if (written[i] == 'K') line.resize(std::min(line.size(), column));
        } else {
            line.resize(std::max(line.size(), column + 1), ' ');
            line[column++] = written[i];
        }
    }
    out.push_back(line);
    return out;
}

// What a terminal gets that stdout and stderr share.
std::string written_to_one_terminal(std::vector<std::string> words) {
    words.insert(words.begin(), SMLA_TOOL);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int leader = -1;
    const pid_t child = forkpty(&leader, nullptr, nullptr, nullptr);
    if (child == 0) {
        setenv("TERM", "xterm", 1);
        execv(argv[0], argv.data());
        _exit(127);
    }
    std::string out;
    char buffer[4096];
    for (ssize_t n; (n = read(leader, buffer, sizeof buffer)) > 0;) out.append(buffer, size_t(n));
    close(leader);
    waitpid(child, nullptr, 0);
    return out;
}

TEST(CliTerminal, NothingOfABarStaysBetweenLines) {
    const Files files;
    std::vector<std::vector<std::string>> commands = files.commands();
    commands.push_back({"run", files.example.path(), "--hidden", files.example.path() + "/hidden.safetensors",
                        "--out", files.example.path() + "/y.safetensors"});
    int bars = 0;
    for (const std::vector<std::string>& words : commands) {
        const std::string written = written_to_one_terminal(words);
        bars += has(written, " % ");
        for (const std::string& line : lines_on_screen(written))
            EXPECT_FALSE(has(line, "[#") || has(line, "[..")) << words[0] << ": " << line;
    }
    EXPECT_GT(bars, 4);
}

// A run whose first case takes long is not silent.
TEST(CliTerminal, ABarIsDrawnBeforeTheFirstCase) {
    const std::vector<std::string> words{"bench", "--quick", "--seconds", "0.01", "--case", "select"};
    const std::string err = run_tool(words, {.terminal = true, .columns = 80}).err;
    const size_t first = err.find("  0 %"), next = err.find(" 50 %");
    EXPECT_LT(first, err.find("measuring the peaks")) << err;
    EXPECT_LT(err.find("measuring the peaks"), next) << err;
}

TEST(CliTerminal, ColumnsOfTheEnvironmentAreStrongerThanTheTerminal) {
    const RunOptions options{.environment = {"COLUMNS=70"}, .terminal = true, .columns = 200};
    const size_t width = columns_of(widest(run_tool({"list"}, options).out));
    EXPECT_LE(width, 70u);
    EXPECT_GT(width, 60u);
    const RunOptions nonsense{.environment = {"COLUMNS=wide"}, .terminal = true, .columns = 90};
    EXPECT_LE(columns_of(widest(run_tool({"list"}, nonsense).out)), 90u);
}

TEST(CliTerminal, LeastImportantColumnsGoFirstAndAreNamed) {
    const TemporaryFile v32(kV32);
    const std::vector<std::string> words{"capacity", "--model", v32.path()};
    const std::string narrow =
        run_tool(words, {.environment = {"NO_COLOR=1"}, .terminal = true, .columns = 60}).out;
    const std::string table = narrow.substr(0, narrow.find("FLOPs of one token"));
    EXPECT_TRUE(has(table, "(left out of 60 columns: rows/page, width")) << table;
    const std::string header = table.substr(table.find("layers of kind"), 61);
    for (const char* kept : {"layers of kind", "cache", "B/token"}) EXPECT_TRUE(has(header, kept)) << header;
    EXPECT_FALSE(has(header, "rows/page")) << header;
    const std::string wide =
        run_tool(words, {.environment = {"NO_COLOR=1"}, .terminal = true, .columns = 400}).out;
    EXPECT_TRUE(has(wide, "rows/page")) << wide;
    EXPECT_FALSE(has(wide, "left out of")) << wide;
}

TEST(CliTerminal, LongTextsAreBrokenNotLost) {
    const auto kernels = json_of({"list", "kernels"}, "kernels");
    const std::string shown = run_tool({"list", "kernels"}, {.terminal = true, .columns = 60}).out;
    for (const auto& row : kernels) {
        if (row["stage"] != "attend") continue;
        for (const std::string kernel : row["cpu"]) EXPECT_TRUE(has(shown, kernel)) << kernel << shown;
    }
}

TEST(CliTerminal, PipeAndJsonGetEverything) {
    const TemporaryFile v32(kV32);
    const std::vector<std::string> words{"capacity", "--model", v32.path()};
    const Finished pipe = run_tool(words), told = run_tool(words, {.environment = {"COLUMNS=60"}});
    EXPECT_EQ(pipe.out, told.out);
    EXPECT_GT(columns_of(widest(pipe.out)), 120u);
    EXPECT_TRUE(has(pipe.out, "rows/page"));
    std::vector<std::string> as_json = words;
    as_json.emplace_back("--json");
    const Finished run = run_tool(as_json, {.terminal = true, .columns = 60});
    EXPECT_EQ(nlohmann::json::parse(run.out), json_of(words));
}

}  // namespace

}  // namespace smla::test
