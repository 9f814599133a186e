// Every place where the tool reads a file, on what is no such file: one error, exit code 2, no output, an
// end.
#include "cli/run_tool.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

namespace smla::test {

namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsMemory = false;  // a sanitizer's own memory is counted, too
#else
constexpr bool kCountsMemory = true;
#endif

struct Reader {
    std::string file;  // that is spoilt, relative to the folder that has everything
    std::vector<std::string> words;
    std::string remove = {};  // a file that would be read instead
};

// "@" stands for the folder.
const std::vector<std::string> kRun = {"run",   "@/model", "--hidden", "@/model/hidden.safetensors",
                                       "--out", "@/y.st"};
std::vector<std::string> run_with(const std::string& option, const std::string& file) {
    std::vector<std::string> words = kRun;
    words.insert(words.end(), {option, file});
    return words;
}
const Reader kReaders[] = {
    {"c.json", {"explain", "--model", "@/c.json"}},
    {"c.json", {"explain", "--model", "@/c.json", "--device", "sm_90"}},
    {"model/config.json", {"explain", "--model", "@/model"}},
    {"c.json", {"capacity", "--model", "@/c.json"}},
    {"model/config.json", {"capacity", "--model", "@/model"}},
    {"model/config.json", kRun},
    {"model/model.safetensors", kRun},
    {"model/model.safetensors.index.json", kRun, "model/model.safetensors"},
    {"x.st", {"run", "@/model", "--hidden", "@/x.st", "--out", "@/y.st"}},
    {"x.st", run_with("--topk", "@/x.st")},
    {"x.st", run_with("--expected", "@/x.st")},
    {"t.csv", {"run", "--serve", "@/t.csv"}},
    {"model/config.json", {"demo", "@/model"}},
    {"model/hidden.safetensors", {"demo", "@/model"}},
    {"model/expected.safetensors", {"demo", "@/model"}},
    {"g.safetensors", {"example", "--golden", "@/g.safetensors", "--out", "@/made"}},
    {"g.json", {"example", "--golden", "@/g.safetensors", "--out", "@/made"}},
    {"g.safetensors", {"verify", "--golden", "@/g.safetensors"}},
    {"g.json", {"verify", "--golden", "@/g.safetensors"}},
};

// A file of so many bytes, which takes no room on the disk. It begins as JSON, a CSV or a header might.
void write_long_line(const fs::path& path, uintmax_t bytes) {
    std::ofstream(path) << "{1,";
    fs::resize_file(path, bytes);
}

struct Kind {
    const char* name;
    std::function<void(const fs::path&)> make;
};
const Kind kKinds[] = {
    {"a device without end", [](const fs::path& path) { fs::create_symlink("/dev/zero", path); }},
    {"a FIFO", [](const fs::path& path) { ASSERT_EQ(mkfifo(path.c_str(), 0666), 0); }},
    {"a folder", [](const fs::path& path) { fs::create_directory(path); }},
    {"nothing", [](const fs::path&) {}},
    {"an empty file", [](const fs::path& path) { std::ofstream(path).flush(); }},
    {"an unreadable file",
     [](const fs::path& path) {
         std::ofstream(path) << "{}";
         fs::permissions(path, fs::perms(0));
     }},
    {"a line of 300 MB", [](const fs::path& path) { write_long_line(path, 300'000'000); }},
    {"a line of 10 MB", [](const fs::path& path) {
         std::string cells;
         while (cells.size() < 10'000'000) cells += "1,";
         std::ofstream(path) << cells;
     }}};

class CliInputs : public testing::Test {
protected:
    void SetUp() override {
        const std::string goldens = SMLA_SOURCE_DIR "/tests/goldens/";
        ASSERT_EQ(run_tool({"example", "--golden", goldens + "D1.safetensors", "--out", at("model")}).code,
                  0);
        for (const char* suffix : {".json", ".safetensors"})
            fs::copy_file(goldens + "D1" + suffix, at("g") + suffix);
        fs::permissions(folder_.path(), fs::perms(0777));
    }
    std::string at(const std::string& name) const { return folder_.path() + "/" + name; }

    // What the tool answers where one of its files is something else.
    Finished answer(const Reader& reader, const Kind& kind) const {
        std::vector<fs::path> aside;
        for (const std::string& name : {reader.file, reader.remove})
            if (!name.empty() && fs::exists(at(name))) {
                aside.emplace_back(at(name));
                fs::rename(aside.back(), aside.back().string() + ".aside");
            }
        kind.make(at(reader.file));
        std::vector<std::string> words = reader.words;
        for (std::string& word : words)
            if (word.starts_with("@/")) word = at(word.substr(2));
        RunOptions options;
        options.environment = {"SMLA_THREADS=1"};
        options.seconds = 30;
        if (geteuid() == 0 && kind.name == std::string("an unreadable file"))
            options.user = 65534;  // root may read every file
        const Finished run = run_tool(words, options);
        fs::remove_all(at(reader.file));
        for (const fs::path& each : aside) fs::rename(each.string() + ".aside", each);
        return run;
    }

private:
    TemporaryFolder folder_;
};

TEST_F(CliInputs, WhatIsNoSuchFileIsOneErrorAndAnEnd) {
    for (const Reader& reader : kReaders)
        for (const Kind& kind : kKinds) {
            const Finished run = answer(reader, kind);
            const std::string about =
                reader.words[0] + ", " + reader.file + " is " + kind.name + ": " + run.out + run.err;
            EXPECT_EQ(run.signal, 0) << about;
            EXPECT_EQ(run.code, 2) << about;
            EXPECT_EQ(run.out, "") << about;
            EXPECT_EQ(run.err.rfind("smla: error: ", 0), 0u) << about;
            EXPECT_EQ(run.err.find('\n'), run.err.size() - 1) << about;
            const std::string file = fs::path(reader.file).filename().string();
            EXPECT_NE(run.err.find(kind.name == std::string("nothing") ? "" : file), std::string::npos)
                << about;
            if (kCountsMemory) {
                EXPECT_LT(run.peak_kib, 256 * 1024) << about;
            }
            EXPECT_FALSE(fs::exists(at("y.st")) || fs::exists(at("made"))) << about;
        }
}

// A new option that takes text is a file, and above, or a name, and in usage_test.cpp.
TEST_F(CliInputs, EveryOptionThatReadsAFileIsAmongThese) {
    std::set<std::pair<std::string, std::string>> tested;
    for (const Reader& reader : kReaders)
        for (size_t i = 1; i + 1 < reader.words.size(); ++i)
            if (reader.words[i].starts_with("--")) tested.emplace(reader.words[0], reader.words[i]);
    for (const std::string& command : subcommands())
        for (const HelpOption& option : options_of(command)) {
            const bool reads = option.about.find("afetensors") != std::string::npos ||
                               option.about.find("config.json") != std::string::npos ||
                               option.about.find("CSV") != std::string::npos ||
                               option.about.find("olden file") != std::string::npos ||
                               option.about.find("of this file") != std::string::npos;
            if (option.type != "TEXT" || !reads || option.about.starts_with("Output")) continue;
            EXPECT_TRUE(tested.count({command, option.name})) << command << " " << option.name;
        }
}

}  // namespace

}  // namespace smla::test
