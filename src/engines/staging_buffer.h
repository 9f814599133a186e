// Copies fields from the host to a GPU in stream order without waiting, the last step of a metadata build.
#pragma once

#include "core/device.h"

#include <span>

namespace smla {

// A copy out of the staging buffer. Offset, address and size are multiples of 16 bytes.
struct StagedCopy {
    size_t offset = 0;
    void* to = nullptr;
    size_t bytes = 0;
};

// Pinned host memory: two alternating buffers.
class StagingBuffer {
public:
    static constexpr size_t kUnit = 16;
    static constexpr int kMostCopies = 32;

    virtual ~StagingBuffer() = default;
    // Throws if the stream is being captured, because a replay would copy the memory's contents at that time.
    virtual void refuse_capture(const char* field, smla_stream stream) const = 0;
    // Returns the buffer to fill next. Waits only if the copies of two builds ago are still running.
    virtual char* next() = 0;
    // Queues one kernel that makes at most kMostCopies copies from the buffer that next() returned.
    virtual void copy(std::span<const StagedCopy> copies, smla_stream stream) = 0;
};

}  // namespace smla
