// Tests that end a process's use of the GPU, or fill its memory, run in a child: this program once more, with
// that test alone. A child that hangs is killed, and the test says so.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <string>

namespace gpu {

constexpr int kChildSeconds = 20;

// What this process is to do as a child; empty: it is none.
std::string child_role();

// This program with the running test alone, as a child with a role.
class Child {
public:
    explicit Child(const std::string& role);
    ~Child();
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    // Waits. Empty: its test passed; else how it ended.
    std::string complaint();
    std::string output() const;  // of a child that has ended
    // What follows `key` in a line of its output; empty: no such line.
    std::string said(const std::string& key) const;

private:
    pid_t pid_ = -1;
    int log_ = -1;
};

// Runs the test in a child and fails unless it passes there; what it printed is shown.
void expect_child_passes();

#define SMLA_IN_A_CHILD()            \
    if (gpu::child_role().empty()) { \
        gpu::expect_child_passes();  \
        return;                      \
    }

}  // namespace gpu
