// What this machine and this build are.
#pragma once

#include <cstdint>
#include <string>

namespace smla::cli {

std::string cpu_model();
int64_t memory_total();      // bytes; 0: unknown
int64_t memory_available();  // bytes; 0: unknown
std::string huge_pages();    // "always", "madvise", "never" or "unknown"
std::string compiler();      // "gcc 12.2.0"
std::string build_type();    // "optimised", "debug"

}  // namespace smla::cli
