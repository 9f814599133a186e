#include "core/limits.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

namespace smla {
namespace {

// A folder that stands for "/", with what a test writes into it.
class Root {
public:
    Root() {
        std::string name = (std::filesystem::temp_directory_path() / "smla_limits_XXXXXX").string();
        path_ = ::mkdtemp(name.data()) ? name : "";
    }
    ~Root() { std::filesystem::remove_all(path_); }
    Root(const Root&) = delete;
    Root& operator=(const Root&) = delete;
    void write(const std::string& file, const std::string& text) const {
        const std::filesystem::path path = path_ + "/" + file;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text << "\n";
    }
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

TEST(Limits, NoGroupsMeanNoLimit) {
    const Root root;
    EXPECT_EQ(cpu_limit_cores(root.path()), 0);
    EXPECT_EQ(memory_limit_bytes(root.path()), 0);
    EXPECT_TRUE(memory_nodes(root.path()).empty());
}

TEST(Limits, TheSmallestLimitOfAGroupAndThoseAroundItHolds) {
    const Root root;
    root.write("proc/self/cgroup", "0::/pods/one");
    root.write("sys/fs/cgroup/pods/one/cpu.max", "max 100000");
    root.write("sys/fs/cgroup/pods/one/memory.max", "max");
    EXPECT_EQ(cpu_limit_cores(root.path()), 0);
    EXPECT_EQ(memory_limit_bytes(root.path()), 0);
    root.write("sys/fs/cgroup/pods/cpu.max", "800000 100000");
    root.write("sys/fs/cgroup/pods/memory.max", "8589934592");
    EXPECT_EQ(cpu_limit_cores(root.path()), 8);
    EXPECT_EQ(memory_limit_bytes(root.path()), int64_t(8) << 30);
    root.write("sys/fs/cgroup/pods/one/cpu.max", "250000 100000");
    root.write("sys/fs/cgroup/pods/one/memory.max", "1073741824");
    EXPECT_EQ(cpu_limit_cores(root.path()), 2.5);
    EXPECT_EQ(memory_limit_bytes(root.path()), int64_t(1) << 30);
    root.write("sys/fs/cgroup/cpu.max", "50000 100000");
    EXPECT_EQ(cpu_limit_cores(root.path()), 0.5);
}

TEST(Limits, GroupsOfVersion1) {
    const Root root;
    root.write("proc/self/cgroup", "5:cpuset:/a\n4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n0::/");
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    EXPECT_EQ(cpu_limit_cores(root.path()), 0);
    EXPECT_EQ(memory_limit_bytes(root.path()), 0);
    // In a container: the group has the host's name, what is mounted is the container's own.
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000");
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096");
    EXPECT_EQ(cpu_limit_cores(root.path()), 3);
    EXPECT_EQ(memory_limit_bytes(root.path()), 4096);
    // Limits of controllers that say nothing of CPU time or memory.
    root.write("sys/fs/cgroup/cpuset/a/cpu.max", "100 100000");
    EXPECT_EQ(cpu_limit_cores(root.path()), 3);
}

TEST(Limits, FilesThatSaySomethingElseAreNoLimit) {
    const Root root;
    root.write("proc/self/cgroup", "nonsense\n0:\n0::/a\n::::");
    for (const char* text : {"", "max", "-5 100000", "100000 0", "100000", "x y"}) {
        root.write("sys/fs/cgroup/a/cpu.max", text);
        EXPECT_EQ(cpu_limit_cores(root.path()), 0) << text;
    }
    for (const char* text : {"", "-1", "x", "1e30"}) {
        root.write("sys/fs/cgroup/a/memory.max", text);
        EXPECT_EQ(memory_limit_bytes(root.path()), 0) << text;
    }
}

TEST(Limits, MemoryNodesOfTheCoresThatMayBeUsed) {
    cpu_set_t mask;
    ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    std::vector<int> mine;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &mask)) mine.push_back(core);
    const Root root;
    root.write("sys/devices/system/node/online", "0,2-3");
    root.write("sys/devices/system/node/node0/cpulist", std::to_string(mine.front()));
    root.write("sys/devices/system/node/node2/cpulist",
               std::to_string(mine.front() + 1) + "-" + std::to_string(mine.back() + 100000));
    root.write("sys/devices/system/node/node3/cpulist", "");  // memory without cores
    const std::vector<MemoryNode> nodes = memory_nodes(root.path());
    ASSERT_EQ(nodes.size(), mine.size() > 1 ? 2u : 1u);
    EXPECT_EQ(nodes[0].number, 0);
    EXPECT_EQ(nodes[0].cores, 1);
    if (mine.size() > 1) {
        EXPECT_EQ(nodes[1].number, 2);
        EXPECT_EQ(nodes[1].cores, int(mine.size()) - 1);
    }
}

TEST(Limits, UsableCoresAreThoseOfTheMaskWithinTheLimit) {
    const Root root;
    const int all = cores_of_affinity();
    EXPECT_EQ(usable_cores(root.path()), all);
    root.write("proc/self/cgroup", "0::/");
    const auto limited_to = [&](int64_t microseconds) {
        root.write("sys/fs/cgroup/cpu.max", std::to_string(microseconds) + " 100000");
        return usable_cores(root.path());
    };
    EXPECT_EQ(limited_to(50000), 1) << "half a core runs one thread";
    EXPECT_EQ(limited_to(190000), 1) << "a second thread would be stopped";
    EXPECT_EQ(limited_to(100000 * int64_t(all)), all);
    EXPECT_EQ(limited_to(100000 * int64_t(all + 7)), all);
}

}  // namespace
}  // namespace smla
