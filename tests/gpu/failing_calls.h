// The CUDA calls of this program, of which the n-th can be made to fail without being made, and what they
// have taken and not given back. The linker sends the calls here (tests/CMakeLists.txt); those of cuBLASLt
// are its own.
#pragma once

#include <cstdint>
#include <string>

namespace gpu {

enum class Failing {
    memory,  // what takes memory, as if there were none
    any      // whatever may fail, as if a kernel before it had
};
// The nth call of the kind from here on fails, and `more` after it.
void fail_calls(Failing kind, int64_t nth, int64_t more);
// How many were made since; none fails any more.
int64_t stop_failing();
std::string last_failed();  // its name

struct Held {
    int64_t blocks = 0, bytes = 0;  // of the device
    int64_t pinned = 0, events = 0;
    bool operator==(const Held&) const = default;
    std::string text() const;
};
Held held();

}  // namespace gpu
