// Scratch memory of the caller. The first 4 KiB hold counters and the error word; the rest may be dirty.
#pragma once

#include "core/status.h"

#include <cstddef>
#include <cstdint>

namespace smla {

constexpr size_t kWorkspaceHeader = 4096;
constexpr size_t kCacheLine = 64;

constexpr size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Workspace {
    void* data = nullptr;
    size_t bytes = 0;

    // Returns the bytes for a plan, never 0, because a budget of 0 means no limit.
    size_t budget() const { return bytes < kWorkspaceHeader ? kWorkspaceHeader : bytes; }
};

// Allocates 64-byte aligned blocks. An arena without memory only adds up sizes, so that one function both
// sizes and divides a workspace.
class Arena {
public:
    Arena() = default;  // sizing
    explicit Arena(Workspace workspace)
        : base_(static_cast<char*>(workspace.data)), limit_(workspace.bytes) {}

    template <class T>
    T* take(size_t count) {
        const size_t at = used_;
        used_ += round_up(count * sizeof(T), kCacheLine);
        if (!base_) return nullptr;
        if (used_ > limit_)
            fail(SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes", text(limit_), text("at least ", used_));
        return reinterpret_cast<T*>(base_ + at);
    }
    size_t used() const { return used_; }

private:
    char* base_ = nullptr;
    size_t limit_ = 0, used_ = kWorkspaceHeader;
};

}  // namespace smla
