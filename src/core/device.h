// Access to the memory of the host or a GPU. GPU engines implement Device; layers, sessions and plans
// allocate and copy through it.
#pragma once

#include "core/stage.h"

#include <smla/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace smla {

struct Env;
struct IndexScan;
struct MetadataJob;
struct PlanJob;
class StagingBuffer;

// Properties of a GPU on which kernels and schedules depend; zeros for a CPU.
struct DeviceFacts {
    int capability = 0;  // 10 * major + minor: 90 for an H200
    int multiprocessors = 0;
    size_t shared_bytes = 0;  // maximum shared memory of a thread block
    size_t memory_bytes = 0, l2_bytes = 0;
    bool reads_pageable = false;  // kernels can read pageable host memory
    std::string name;
};

// Recorded device work that replay() queues again.
class Recording {
public:
    virtual ~Recording() = default;
    virtual void replay(smla_stream stream) const = 0;  // not for concurrent calls
};

class Device {
public:
    virtual ~Device() = default;
    virtual smla_device_type type() const = 0;
    virtual int32_t index() const = 0;
    virtual const DeviceFacts& facts() const = 0;

    // Returns memory aligned to 256 bytes on a GPU, to a cache line on the host. Throws if memory runs out.
    virtual void* allocate(size_t bytes) = 0;
    virtual void release(void* memory) noexcept = 0;
    virtual bool reaches(const void* memory) const = 0;  // whether kernels can read and write it
    // Copies in stream order. The memory at `from` may be reused when upload() returns.
    virtual void upload(void* to, const void* from, size_t bytes, smla_stream stream) = 0;
    // Uploads from the C++ heap without waiting for the stream. CUDA has read pageable memory when its copy
    // returns, but not pinned memory.
    virtual void upload_heap(void* to, const void* from, size_t bytes, smla_stream stream) {
        upload(to, from, bytes, stream);
    }
    virtual void download(void* to, const void* from, size_t bytes, smla_stream stream) = 0;
    virtual void fill(void* to, int byte, size_t bytes, smla_stream stream) = 0;
    // Fills `rows` rows of row_bytes bytes each, which begin `pitch` bytes apart.
    virtual void fill_rows(void* to, size_t pitch, int byte, size_t row_bytes, size_t rows,
                           smla_stream stream) = 0;
    virtual void wait(smla_stream stream) = 0;
    // Returns whether waiting for the stream would break a capture of this stream or, for the null stream, of
    // one that synchronizes with it.
    virtual bool capturing(smla_stream stream) = 0;
    // Returns the seconds that the work queued by `body` takes on the device's clock. Waits for that work.
    virtual double seconds_of(smla_stream stream, const std::function<void()>& body) = 0;

    // Records the work that `body` queues on its stream, without running it. Returns null if the device
    // cannot record this work.
    virtual std::unique_ptr<Recording> record(const std::function<void(smla_stream)>& body) {
        (void)body;
        return nullptr;
    }

    // The following functions run the GPU work of plans, metadata and checked calls, in stream order.
    virtual void build_plan(const PlanJob& job, smla_stream stream);         // at most two launches
    virtual void fill_metadata(const MetadataJob& job, smla_stream stream);  // one launch
    virtual std::unique_ptr<StagingBuffer> open_staging_buffer(size_t bytes);
    // Sets row i of `rows` [n,columns] to 0, 1, ..., counts[i] - 1, then -1.
    virtual void count_up(const int32_t* counts, int32_t* rows, int64_t n, int64_t columns,
                          smla_stream stream);
    // Scans a call's lists and writes the first bad value to the workspace's error word.
    virtual void note_bad_value(const IndexScan& scan, Stage stage, const Env& env);

    // Makes the device current for this thread during the scope's lifetime.
    class Scope {
    public:
        explicit Scope(Device& device) : device_(device), before_(device.enter()) {}
        ~Scope() { device_.leave(before_); }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

    private:
        Device& device_;
        int before_;
    };

private:
    virtual int enter() = 0;
    virtual void leave(int before) noexcept = 0;
};

Device& host_device();
// Throws if the stream is being captured, because the caller waits for it. The capture stays intact.
void refuse_capture(Device& device, smla_stream stream);

// Owns a block of device memory.
class DeviceBuffer {
public:
    DeviceBuffer() = default;
    DeviceBuffer(Device& device, size_t bytes)
        : device_(&device), data_(device.allocate(bytes)), bytes_(bytes) {}
    ~DeviceBuffer() { reset(); }
    DeviceBuffer(DeviceBuffer&& other) noexcept { *this = static_cast<DeviceBuffer&&>(other); }
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        reset();
        device_ = other.device_, data_ = other.data_, bytes_ = other.bytes_;
        other.data_ = nullptr, other.bytes_ = 0;
        return *this;
    }
    void* data() const { return data_; }
    size_t bytes() const { return bytes_; }

private:
    void reset() {
        if (data_) device_->release(data_);
        data_ = nullptr;
    }
    Device* device_ = nullptr;
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

// Copy of a host tensor in device memory, with equal strides, and the owner of that memory. For the host's
// device, `view` is the tensor itself.
struct PlacedTensor {
    smla_tensor view{};
    std::shared_ptr<DeviceBuffer> memory;
};
PlacedTensor place(Device& device, const smla_tensor& host);
// Returns the tensor at another address, on the device.
inline smla_tensor placed_at(smla_tensor tensor, void* data, const Device& device) {
    tensor.data = data;
    tensor.device_type = device.type();
    tensor.device_index = device.index();
    return tensor;
}
// Waits for the stream and copies a device tensor to host memory, which `memory` then owns.
smla_tensor fetch(Device& device, const smla_tensor& tensor, smla_stream stream,
                  std::unique_ptr<char[]>& memory);

}  // namespace smla
