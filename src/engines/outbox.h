// Host memory sent to a GPU in the order of a stream, without waiting for it: what a build of metadata ends
// with.
#pragma once

#include "core/device.h"

#include <span>

namespace smla {

// A part of the staging memory and where it goes. Offsets, addresses and sizes are multiples of 16 bytes.
struct Parcel {
    size_t offset = 0;
    void* to = nullptr;
    size_t bytes = 0;
};

class Outbox {
public:
    static constexpr size_t kUnit = 16;
    static constexpr int kMostParcels = 32;

    virtual ~Outbox() = default;
    // Throws where the stream is capturing: a graph would send what the memory holds at its replay.
    virtual void refuse_capture(const char* field, smla_stream stream) const = 0;
    // Memory to fill next. There are two, used in turn: the host waits only if the send before the last one
    // is still under way.
    virtual char* next() = 0;
    // Queues one kernel that copies the parcels of next()'s memory; at most kMostParcels.
    virtual void send(std::span<const Parcel> parcels, smla_stream stream) = 0;
};

// Throws where there is no GPU's device.
std::unique_ptr<Outbox> open_outbox(Device& device, size_t bytes);

// Row i of `rows` [n,columns] becomes 0, 1, ..., counts[i] - 1, then -1, on a GPU.
void count_up_on_gpu(const int32_t* counts, int32_t* rows, int64_t n, int64_t columns, Device& device,
                     smla_stream stream);

}  // namespace smla
