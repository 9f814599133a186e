// What the system lets this process use: cores, memory, and the memory nodes (NUMA) of its cores.
// `root` is where /proc and /sys are found; tests have folders of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smla {

// Cores of the affinity mask (taskset, cpusets).
int cores_of_affinity();

// The CPU limit of this process's control groups (a container's `--cpus`), in cores; 0: no limit.
double cpu_limit_cores(const std::string& root = "");

// How many threads can run at once: the affinity mask, and no more than the CPU limit lets run all the time.
// One thread more would make the system stop all of them for the rest of a period (100 ms by default).
int usable_cores(const std::string& root = "");

// The memory limit of this process's control groups; 0: no limit.
int64_t memory_limit_bytes(const std::string& root = "");

struct MemoryNode {
    int number = 0;
    int cores = 0;  // of the affinity mask; nodes without any are left out
};
// Empty where the system does not say.
std::vector<MemoryNode> memory_nodes(const std::string& root = "");

}  // namespace smla
