// Every example of every help text runs, in a folder that has the files it names.
#include "cli/run_tool.h"
#include "engines/run.h"
#include "model/configs.h"

#include <gtest/gtest.h>
#include <wordexp.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

namespace smla::test {

namespace {

namespace fs = std::filesystem;

struct Example {
    std::string text;
    bool gpu;  // whether it is listed below "With a GPU:"
};

// Lines of a help text that begin with "  smla ".
std::vector<Example> examples() {
    std::vector<Example> found;
    for (const std::string& name : subcommands()) {
        const std::string help = run_tool({name, "--help"}).out;
        std::istringstream lines(help.substr(std::min(help.find("Examples:"), help.size())));
        bool gpu = false;
        for (std::string line; std::getline(lines, line);) {
            gpu = gpu || line == "With a GPU:";
            if (line.starts_with("  smla ")) found.push_back({line.substr(7), gpu});
        }
    }
    return found;
}

// The words of an example, with small sizes where the defaults are for measurements or for all golden files.
std::vector<std::string> words_of(std::string example) {
    if (example.starts_with("bench")) example += " --seconds 0.01";
    if (example.starts_with("bench") && example.find("--suite") == std::string::npos &&
        example.find("--quick") == std::string::npos)
        example += " --quick";
    example = std::regex_replace(example, std::regex("verify --seconds \\d+"), "verify --seconds 0.5");
    example = std::regex_replace(example, std::regex("goldens/\\*"), "goldens/G*");
    wordexp_t expanded;
    EXPECT_EQ(wordexp(example.c_str(), &expanded, WRDE_NOCMD | WRDE_UNDEF), 0) << example;
    std::vector<std::string> words(expanded.we_wordv, expanded.we_wordv + expanded.we_wordc);
    wordfree(&expanded);
    return words;
}

// A folder as the examples expect it; the test works in it.
class CliExamples : public testing::Test {
protected:
    void SetUp() override {
        fs::current_path(folder_.path());
        const fs::path source = SMLA_SOURCE_DIR;
        fs::create_directories("tests/goldens");
        for (const char* suffix : {".json", ".safetensors"}) {
            for (const char* name : {"D6", "G1"})
                fs::create_symlink(source / "tests/goldens" / (std::string(name) + suffix),
                                   std::string("tests/goldens/") + name + suffix);
            fs::create_symlink(source / "tests/goldens" / (std::string("D1") + suffix),
                               std::string("case") + suffix);
        }
        fs::create_directories("examples");
        fs::create_symlink(source / "examples/traces", "examples/traces");
        for (const auto& [folder, config] :
             {std::pair{"DeepSeek-V3.2", kV32}, std::pair{"GLM-5.2", kGlm52}, std::pair{"V4", v4_flash()}}) {
            fs::create_directory(folder);
            std::ofstream(std::string(folder) + "/config.json") << config;
        }
        for (const auto& [name, folder] : {std::pair{"D6", "v32"}, std::pair{"G1", "glm5"}})
            ASSERT_EQ(run_tool({"example", "--golden",
                                (source / "tests/goldens" / name).string() + ".safetensors", "--out", folder})
                          .code,
                      0);
    }
    void TearDown() override { fs::current_path("/"); }

    TemporaryFolder folder_;
};

// Without a GPU, examples that need one report this.
TEST_F(CliExamples, EveryExampleRuns) {
    const bool has_gpu = why_no_engine(SMLA_ENGINE_CUDA).empty();
    const std::vector<Example> all = examples();
    EXPECT_GE(all.size(), 28u);
    int needing = 0;
    for (const Example& example : all) {
        SCOPED_TRACE("smla " + example.text);
        const Finished run = run_tool(words_of(example.text), {.seconds = 120});
        needing += example.gpu;
        if (example.gpu && !has_gpu) {
            EXPECT_EQ(run.code, 3) << run.out << run.err;
            EXPECT_NE(run.err.find("wanted a GPU ("), std::string::npos) << run.err;
            continue;
        }
        EXPECT_EQ(run.code, 0) << run.out << run.err;
        EXPECT_NE(run.out, "");
        if (example.text.find("--json") != std::string::npos) {
            EXPECT_TRUE(nlohmann::json::accept(run.out));
        }
    }
    EXPECT_EQ(needing, 2);
}

}  // namespace

}  // namespace smla::test
