// Files that the tool writes while it is killed, while disks fill, and where it may not look.
#include "cli/run_tool.h"
#include "model/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

namespace smla::test {

namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
}

const std::string kGolden = SMLA_SOURCE_DIR "/tests/goldens/V3_S40.safetensors";

// A checkpoint in model/, and files that were there before in out/.
class CliFiles : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_EQ(run_tool({"example", "--golden", kGolden, "--out", at("model")}).code, 0);
        fs::create_directory(at("out"));
        std::ofstream(at("out/y.st")) << "old";
        std::ofstream(at("out/t.st")) << "old";
    }
    std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
    std::vector<std::string> run_into(const std::string& out) const {
        return {"run",   at("model"),   "--hidden",    at("model/hidden.safetensors"),
                "--out", out + "/y.st", "--save-topk", out + "/t.st"};
    }
    // Expects every file to be old or complete, and no other names. If the process is killed while it
    // replaces a file, the complete new file remains under a name that the next write removes.
    static void expect_old_or_whole(const fs::path& folder, const std::vector<std::string>& names,
                                    bool killed_while_replacing = false) {
        for (const auto& entry : fs::recursive_directory_iterator(folder)) {
            const std::string name = entry.path().filename();
            const fs::path of =
                name.substr(0, killed_while_replacing ? name.find(".smla-part.") : std::string::npos);
            EXPECT_NE(std::find(names.begin(), names.end(), of), names.end()) << name << " is left over";
            EXPECT_TRUE(fs::exists(entry.path().parent_path() / of)) << name << " replaces nothing";
            if (of.extension() == ".json") {
                EXPECT_TRUE(nlohmann::json::accept(content(entry.path()))) << name;
            } else if (of != name || content(entry.path()) != "old") {
                EXPECT_NO_THROW(SafetensorsFile::open(entry.path().string())) << name << " is torn";
            }
        }
    }

private:
    TemporaryFolder folder_;
};

// SMLA_KILLS: how many of each; the soak asks for more.
int kills() {
    const char* const asked = std::getenv("SMLA_KILLS");
    return asked ? std::atoi(asked) : 25;
}

TEST_F(CliFiles, AKilledRunLeavesEachFileOldOrWhole) {
    std::mt19937 random(1);
    int killed = 0;
    for (int i = 0; i < kills(); ++i) {
        RunOptions options;
        options.kill_after_us = 1 + random() % 60000;
        killed += run_tool(run_into(at("out")), options).code == -1;
        expect_old_or_whole(at("out"), {"y.st", "t.st"}, true);
    }
    EXPECT_GT(killed, 0);
    EXPECT_EQ(run_tool(run_into(at("out"))).code, 0);
    expect_old_or_whole(at("out"), {"y.st", "t.st"});
    EXPECT_TRUE(SafetensorsFile::open(at("out/y.st")).has("y"));
}

TEST_F(CliFiles, AKilledExampleLeavesEachFileOldOrWhole) {
    const std::vector<std::string> names{"config.json", "model.safetensors", "hidden.safetensors",
                                         "expected.safetensors"};
    std::mt19937 random(2);
    for (int i = 0; i < kills(); ++i) {
        const bool replaces = i % 3 > 0;
        if (!replaces) fs::remove_all(at("made"));
        RunOptions options;
        options.kill_after_us = 1 + random() % 40000;
        run_tool({"example", "--golden", kGolden, "--out", at("made")}, options);
        if (fs::exists(at("made"))) expect_old_or_whole(at("made"), names, replaces);
    }
    EXPECT_EQ(run_tool({"example", "--golden", kGolden, "--out", at("made")}).code, 0);
    expect_old_or_whole(at("made"), names);
}

TEST_F(CliFiles, AFileThatMayNotGrowLeavesTheOldOne) {
    for (const uint64_t bytes : {0, 1, 100, 4096, 8000}) {
        RunOptions options;
        options.limits = {{RLIMIT_FSIZE, bytes}};
        const Finished run = run_tool(run_into(at("out")), options);
        EXPECT_EQ(run.code, 2) << bytes << run.err;
        EXPECT_NE(run.err.find("File too large"), std::string::npos) << run.err;
        EXPECT_EQ(content(at("out/y.st")), "old");
        expect_old_or_whole(at("out"), {"y.st", "t.st"});
    }
}

// A small disk of its own, in a namespace of its own.
TEST_F(CliFiles, ADiskThatFillsLeavesTheOldFile) {
    const std::string tool = SMLA_TOOL;
    const std::string inner = "mount -t tmpfs -o size=8k none " + at("out") + " && echo old > " +
                              at("out/y.st") + " && " + tool + " run " + at("model") + " --hidden " +
                              at("model/hidden.safetensors") + " --out " + at("out/y.st") + " 2> " +
                              at("err") + "; echo $? > " + at("code") + "; cat " + at("out/y.st") + " > " +
                              at("kept") + "; ls " + at("out") + " > " + at("names");
    if (std::system(("unshare -Urm sh -c '" + inner + "' > /dev/null 2>&1").c_str()) != 0)
        GTEST_SKIP() << "no namespaces of one's own here";
    EXPECT_EQ(content(at("code")), "2\n");
    EXPECT_NE(content(at("err")).find("No space left on device"), std::string::npos) << content(at("err"));
    EXPECT_EQ(content(at("kept")), "old\n");
    EXPECT_EQ(content(at("names")), "y.st\n");
}

TEST_F(CliFiles, AFullDeviceIsAnError) {
    const Finished run =
        run_tool({"run", at("model"), "--hidden", at("model/hidden.safetensors"), "--out", "/dev/full"});
    EXPECT_EQ(run.code, 2);
    EXPECT_NE(run.err.find("No space left on device"), std::string::npos) << run.err;
}

TEST_F(CliFiles, FoldersThatMayNotBeReadOrWrittenAreErrors) {
    if (geteuid() != 0) GTEST_SKIP() << "only root runs the tool as another user";
    RunOptions nobody;
    nobody.user = 65534;
    fs::permissions(fs::path(at("model")).parent_path(), fs::perms(0755));
    fs::permissions(at("out"), fs::perms(0777));
    fs::permissions(at("model"), fs::perms(0700));
    Finished run = run_tool(run_into(at("out")), nobody);
    EXPECT_EQ(run.code, 2);
    EXPECT_NE(run.err.find("Permission denied"), std::string::npos) << run.err;
    fs::permissions(at("model"), fs::perms(0755));
    fs::permissions(at("out"), fs::perms(0555));
    run = run_tool(run_into(at("out")), nobody);
    EXPECT_EQ(run.code, 2);
    EXPECT_NE(run.err.find("out/y.st"), std::string::npos) << run.err;
    expect_old_or_whole(at("out"), {"y.st", "t.st"});
}

TEST_F(CliFiles, NamesWithNewlinesAndEscapesAreWrittenButNotPrinted) {
    const std::string name = "a\nb\x1b[31m";
    fs::rename(at("model"), at(name));
    const Finished run = run_tool(
        {"run", at(name), "--hidden", at(name) + "/hidden.safetensors", "--out", at(name) + "/y.st"});
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_TRUE(fs::exists(at(name) + "/y.st"));
    const Finished refused =
        run_tool({"run", at(name) + "x", "--hidden", at(name) + "y", "--out", at("y.st")});
    EXPECT_EQ(refused.code, 2);
    for (const std::string& text : {run.out, run.err, refused.out, refused.err})
        EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
}

}  // namespace

}  // namespace smla::test
