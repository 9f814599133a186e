#include "core/limits.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <thread>

namespace smla {

namespace {

constexpr int kMostCores = 1 << 16;

// Returns the affinity mask, a flag per core; empty if the system does not report it.
std::vector<bool> affinity() {
    // Linux rejects a mask that is shorter than its own.
    for (int cores = CPU_SETSIZE; cores <= kMostCores; cores *= 2) {
        std::vector<cpu_set_t> mask(size_t(cores / CPU_SETSIZE));
        const size_t bytes = mask.size() * sizeof(cpu_set_t);
        if (sched_getaffinity(0, bytes, mask.data()) != 0) continue;
        std::vector<bool> flags;
        for (int core = 0; core < cores; ++core) flags.push_back(CPU_ISSET_S(core, bytes, mask.data()));
        return flags;
    }
    return {};
}

// Paths are strings, because std::filesystem::path of libstdc++ 12 crashes if a copy runs out of memory.
std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

bool has_word(const std::string& list, const std::string& word) {
    return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

double smaller_limit(double a, double b) { return a > 0 && (b <= 0 || a < b) ? a : b; }

// Returns the smallest limit of this process's control groups and their parents, 0 if none has a limit.
// limit(group) returns the limit in one group's folder, 0 if there is none.
template <typename Limit>
double limit_of_groups(const std::string& root, const std::string& controller,
                       const std::vector<std::string>& mounts, const Limit& limit) {
    std::ifstream groups(root + "/proc/self/cgroup");
    double least = 0;
    // A line is "ID:CONTROLLERS:GROUP"; version 2 names no controllers. A container may see the host's name
    // of its group. Then only the mounted folder, the container's own, is found.
    for (std::string line; std::getline(groups, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool version_2 = controllers.empty();
        if (!version_2 && !has_word(controllers, controller)) continue;
        std::string group = line.substr(second + 1);
        if (group.empty() || group[0] != '/') continue;
        if (group.back() == '/') group.pop_back();
        for (const std::string& mount : version_2 ? std::vector<std::string>{"", "/unified"} : mounts)
            for (std::string at = group;; at.erase(at.rfind('/'))) {
                least = smaller_limit(limit(root + "/sys/fs/cgroup" + mount + at), least);
                if (at.empty()) break;
            }
    }
    return least;
}

// Control groups of version 2 have "QUOTA PERIOD" or "max PERIOD"; version 1 has two files, -1: no limit.
double cores_of_group(const std::string& group) {
    const auto cores = [](const std::string& quota_and_period) {
        std::istringstream in(quota_and_period);
        double quota = 0, period = 0;
        return in >> quota >> period && quota > 0 && period > 0 ? quota / period : 0;
    };
    return smaller_limit(
        cores(first_line(group + "/cpu.max")),
        cores(first_line(group + "/cpu.cfs_quota_us") + " " + first_line(group + "/cpu.cfs_period_us")));
}

// Control groups of version 2 have bytes or "max"; version 1 has a number near 2^63 for no limit.
double bytes_of_group(const std::string& group) {
    const auto bytes = [](const std::string& number) {
        std::istringstream in(number);
        double value = 0;
        return in >> value && value < 0x1p60 ? value : 0;
    };
    return smaller_limit(bytes(first_line(group + "/memory.max")),
                         bytes(first_line(group + "/memory.limit_in_bytes")));
}

// Calls visit(first, last) for each range of "0-3,8,10-11".
template <typename Visit>
void each_range(const std::string& list, const Visit& visit) {
    for (const char *at = list.data(), *const end = at + list.size(); at < end;) {
        int first = 0;
        auto read = std::from_chars(at, end, first);
        if (read.ec != std::errc()) return;
        int last = first;
        if (read.ptr < end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
        if (read.ec != std::errc()) return;
        visit(first, last);
        at = read.ptr + 1;
    }
}

}  // namespace

int cores_of_affinity() {
    const std::vector<bool> mask = affinity();
    const auto cores = int(std::count(mask.begin(), mask.end(), true));
    return cores > 0 ? cores : std::max(1, int(std::thread::hardware_concurrency()));
}

double cpu_limit_cores(const std::string& root) {
    return limit_of_groups(root, "cpu", {"/cpu", "/cpu,cpuacct"}, cores_of_group);
}

int usable_cores(const std::string& root) {
    const int cores = cores_of_affinity();
    const double limit = cpu_limit_cores(root);
    return limit > 0 ? std::clamp(int(limit), 1, cores) : cores;
}

int64_t memory_limit_bytes(const std::string& root) {
    return int64_t(limit_of_groups(root, "memory", {"/memory"}, bytes_of_group));
}

std::vector<MemoryNode> memory_nodes(const std::string& root) {
    const std::vector<bool> mask = affinity();
    const std::string folder = root + "/sys/devices/system/node/";
    std::vector<MemoryNode> nodes;
    each_range(first_line(folder + "online"), [&](int first, int last) {
        for (int number = first; number <= std::min(last, kMostCores); ++number) {
            MemoryNode node{.number = number};
            each_range(first_line(folder + "node" + std::to_string(number) + "/cpulist"),
                       [&](int from, int to) {
                           for (int core = from; core <= std::min(to, int(mask.size()) - 1); ++core)
                               if (core >= 0 && mask[size_t(core)]) ++node.cores;
                       });
            if (node.cores > 0) nodes.push_back(node);
        }
    });
    return nodes;
}

}  // namespace smla
