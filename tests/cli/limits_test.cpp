// The tool where the system has no more to give: it ends, with an error, and files stay as they were.
#include "cli/run_tool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <sstream>

namespace smla::test {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_SANITIZERS GTEST_SKIP() << "the sanitizer's shadow memory takes more than any limit here"
#else
#define SKIP_UNDER_SANITIZERS static_cast<void>(0)
#endif

constexpr uint64_t kMiB = uint64_t(1) << 20;

class CliLimits : public testing::Test {
protected:
    void SetUp() override {
        SKIP_UNDER_SANITIZERS;
        const std::string golden = SMLA_SOURCE_DIR "/tests/goldens/D1.safetensors";
        ASSERT_EQ(run_tool({"example", "--golden", golden, "--out", folder_.path()}).code, 0);
    }
    std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
    Finished run(const RunOptions& options) const {
        std::ofstream(at("y.st")) << "old";
        return run_tool({"run", folder_.path(), "--hidden", at("hidden.safetensors"), "--out", at("y.st")},
                        options);
    }
    std::string output() const {
        std::ostringstream text;
        text << std::ifstream(at("y.st")).rdbuf();
        return text.str();
    }
    bool old_output() const { return output() == "old"; }

private:
    TemporaryFolder folder_;
};

// OpenBLAS maps buffers of 128 MiB in a loop that has no end where there is no room. A run that is done with
// some address space is done with more.
TEST_F(CliLimits, ARunEndsWhateverAddressSpaceItHas) {
    int refused = 0, done = 0;
    for (uint64_t mib = 12; mib <= 1000; mib += mib < 60 ? 4 : mib < 520 ? 20 : 240) {
        RunOptions options;
        options.limits = {{RLIMIT_AS, mib * kMiB}};
        options.seconds = 20;
        const Finished run = this->run(options);
        if (run.code == 127) continue;  // not even the loader had room
        ASSERT_TRUE(run.code == 0 || run.code == 4) << mib << " MiB: " << run.code << run.err;
        EXPECT_EQ(old_output(), run.code != 0) << mib << " MiB: " << run.err;
        EXPECT_EQ(run.err.empty(), run.code == 0) << mib << " MiB: " << run.err;
        EXPECT_TRUE(run.code == 0 || done == 0) << mib << " MiB: " << run.err;
        ++(run.code == 0 ? done : refused);
    }
    EXPECT_GT(refused, 0);
    EXPECT_GT(done, 0);
}

// Where OpenBLAS has no room, smla's own loops give what they give without a library.
TEST_F(CliLimits, LittleAddressSpaceIsEnough) {
    RunOptions options;
    options.environment = {"SMLA_CBLAS=", "SMLA_LOG=1"};
    EXPECT_EQ(this->run(options).code, 0);
    const std::string without = output();
    options.environment = {"SMLA_LOG=1"};
    options.limits = {{RLIMIT_AS, 250 * kMiB}};
    options.seconds = 20;
    const Finished run = this->run(options);
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(output(), without);
    const bool warned = run.err.find("no CBLAS library is used, because less than ") != std::string::npos;
    const bool installed = !json_of({"doctor", "--no-self-test"}, "cblas").is_null();
    EXPECT_EQ(warned, installed) << run.err;
}

// No subcommand takes a lack of memory for something else: it is done, or exits with 4 and says so.
TEST_F(CliLimits, OutOfMemoryIsNoOtherVerdict) {
    const std::string golden = SMLA_SOURCE_DIR "/tests/goldens/D1.safetensors";
    const std::vector<std::vector<std::string>> commands{
        {"verify", "--seconds", "0.2", "--floor", "1", "--seed", "1"},
        {"verify", "--stage", "project", "--seconds", "0.5", "--floor", "20", "--seed", "1"},
        {"verify", "--golden", golden, golden},
        {"doctor"},
        {"bench", "--case", "score", "--quick", "--seconds", "0.01"},
        {"explain", "--model", at("config.json")}};
    int refused = 0;
    for (const auto& command : commands)
        for (const uint64_t mib : {60, 150, 400, 700, 1200}) {
            RunOptions options;
            options.limits = {{RLIMIT_AS, mib * kMiB}};
            options.seconds = 60;
            const Finished run = run_tool(command, options);
            if (run.code == 127) continue;
            EXPECT_TRUE(run.code == 0 || run.code == 4)
                << command[0] << ", " << mib << " MiB: exit code " << run.code << "\n"
                << run.out << run.err;
            const bool said = run.err.find("memory") != std::string::npos ||
                              run.err.find("wanted all threads started") != std::string::npos;
            EXPECT_TRUE(run.code == 0 || said) << command[0] << ", " << mib << " MiB: " << run.err;
            refused += run.code == 4;
        }
    EXPECT_GT(refused, 5);
}

// The same where a workspace is the first memory that is not there: just below what a run takes, by small
// steps.
TEST_F(CliLimits, NoMemoryForAWorkspaceIsNoVerdictOnAKernel) {
    int workspaces = 0;
    for (const std::string stage : {"attend", "score_select"}) {
        const auto run = [&](uint64_t kib) {
            RunOptions options;
            options.environment = {"SMLA_CBLAS="};
            options.limits = {{RLIMIT_AS, kib * 1024}};
            options.seconds = 60;
            return run_tool(
                {"verify", "--seed", "1", "--stage", stage, "--problem", "cpu_generic_" + stage + "/2"},
                options);
        };
        uint64_t too_little = 4000, enough = 400'000;
        ASSERT_EQ(run(enough).code, 0);
        while (enough - too_little > 64) {
            const uint64_t middle = (too_little + enough) / 2;
            (run(middle).code == 0 ? enough : too_little) = middle;
        }
        for (int step = 0; step < 60; ++step) {
            const Finished found = run(too_little - uint64_t(step) * 48);
            if (found.code == 127) break;  // not even the loader had room
            EXPECT_TRUE(found.code == 0 || found.code == 4) << stage << step << found.out << found.err;
            workspaces += found.err.find("memory: got no memory for ") != std::string::npos;
        }
    }
    EXPECT_GT(workspaces, 0);
}

}  // namespace

}  // namespace smla::test
