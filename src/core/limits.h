// Cores, memory and memory nodes (NUMA) that the system lets this process use. `root` contains /proc and
// /sys; tests use folders of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smla {

// Returns the number of cores in the affinity mask (taskset, cpusets).
int cores_of_affinity();

// Returns the CPU limit of this process's control groups (a container's `--cpus`) in cores; 0 if none.
double cpu_limit_cores(const std::string& root = "");

// Returns how many threads can run concurrently: the cores of the affinity mask, at most the CPU limit. With
// one thread more, the system stops all threads for the rest of a period (100 ms by default).
int usable_cores(const std::string& root = "");

// Returns the memory limit of this process's control groups; 0 if there is none.
int64_t memory_limit_bytes(const std::string& root = "");

struct MemoryNode {
    int number = 0;
    int cores = 0;  // cores in the affinity mask; nodes without any are omitted
};
// Returns an empty list if the system reports no nodes.
std::vector<MemoryNode> memory_nodes(const std::string& root = "");

}  // namespace smla
