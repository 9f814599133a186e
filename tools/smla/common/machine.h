// Facts about this machine and this build.
#pragma once

#include "tool.h"

#include <cstdint>
#include <string>

namespace smla::cli {

std::string cpu_model();
int64_t memory_total();      // bytes; 0: unknown
int64_t memory_available();  // bytes; 0: unknown
std::string huge_pages();    // "always", "madvise", "never" or "unknown"
std::string compiler();      // "gcc 12.2.0"
std::string build_type();    // "optimised", "debug"

// Returns why the CUDA engine cannot run here; empty if it can.
std::string why_no_gpu();
// {"devices": [...]}, the GPUs that the CUDA engine runs on; or {"why_none": text}.
Document gpu_facts();
// What stands beside measured figures: version and build, processor, cores, memory, GPUs.
Document machine_facts();

}  // namespace smla::cli
