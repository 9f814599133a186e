// Copies fields from the host to a GPU in stream order, without waiting: the last step of a metadata build.
#pragma once

#include "core/device.h"

#include <span>

namespace smla {

// One copy out of the staging buffer. Offset, address and size are multiples of 16 bytes.
struct StagedCopy {
    size_t offset = 0;
    void* to = nullptr;
    size_t bytes = 0;
};

// Pinned host memory: two buffers, used in turn.
class StagingBuffer {
public:
    static constexpr size_t kUnit = 16;
    static constexpr int kMostCopies = 32;

    virtual ~StagingBuffer() = default;
    // Throws if the stream is capturing: a graph would copy what the memory holds when it is replayed.
    virtual void refuse_capture(const char* field, smla_stream stream) const = 0;
    // The buffer to fill next. Waits only if the copies of two builds ago are still running.
    virtual char* next() = 0;
    // Queues one kernel that makes these copies from the buffer that next() returned; at most kMostCopies.
    virtual void copy(std::span<const StagedCopy> copies, smla_stream stream) = 0;
};

}  // namespace smla
