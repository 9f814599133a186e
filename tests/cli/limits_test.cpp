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
    bool old_output() const {
        std::ostringstream text;
        text << std::ifstream(at("y.st")).rdbuf();
        return text.str() == "old";
    }

private:
    TemporaryFolder folder_;
};

// OpenBLAS maps buffers of 128 MiB in a loop that has no end where there is no room.
TEST_F(CliLimits, ARunEndsWhateverAddressSpaceItHas) {
    int refused = 0, done = 0;
    for (uint64_t mib = 40; mib <= 1000; mib += mib < 520 ? 20 : 240) {
        RunOptions options;
        options.limits = {{RLIMIT_AS, mib * kMiB}};
        options.seconds = 20;
        const Finished run = this->run(options);
        if (run.code == 127) continue;  // not even the loader had room
        ASSERT_TRUE(run.code == 0 || run.code == 4) << mib << " MiB: " << run.code << run.err;
        EXPECT_EQ(old_output(), run.code != 0) << mib << " MiB: " << run.err;
        EXPECT_EQ(run.err.empty(), run.code == 0) << mib << " MiB: " << run.err;
        ++(run.code == 0 ? done : refused);
    }
    EXPECT_GT(refused, 0);
    EXPECT_GT(done, 0);
}

// The way out that the error names.
TEST_F(CliLimits, WithoutALibraryLittleAddressSpaceIsEnough) {
    RunOptions options;
    options.environment = {"SMLA_CBLAS="};
    options.limits = {{RLIMIT_AS, 250 * kMiB}};
    options.seconds = 20;
    const Finished run = this->run(options);
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_FALSE(old_output());
}

}  // namespace

}  // namespace smla::test
