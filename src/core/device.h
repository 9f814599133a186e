// Where an engine's memory lies: this machine's own, or a GPU's. Engines that run on a GPU bring their
// Device; what owns memory (layers, sessions, plans) goes through it.
#pragma once

#include <smla/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace smla {

// What a GPU's kernels and their schedules depend on; zeros on a CPU.
struct DeviceFacts {
    int capability = 0;  // 10 * major + minor: 90 for an H200
    int multiprocessors = 0;
    size_t shared_bytes = 0;  // most that one block may have
    size_t memory_bytes = 0, l2_bytes = 0;
    bool reads_pageable = false;  // all memory of the host, as it is
    std::string name;
};

// Work of a device that was recorded and is queued again with one call.
class Recording {
public:
    virtual ~Recording() = default;
    virtual void replay(smla_stream stream) const = 0;  // not from two threads at once
};

class Device {
public:
    virtual ~Device() = default;
    virtual smla_device_type type() const = 0;
    virtual int32_t index() const = 0;
    virtual const DeviceFacts& facts() const = 0;

    virtual void* allocate(size_t bytes) = 0;  // aligned to 256 bytes; throws when there is none
    virtual void release(void* memory) noexcept = 0;
    virtual bool reaches(const void* memory) const = 0;  // whether kernels can read and write it
    // In the order of the stream. Host memory may be reused when the call returns.
    virtual void upload(void* to, const void* from, size_t bytes, smla_stream stream) = 0;
    virtual void download(void* to, const void* from, size_t bytes, smla_stream stream) = 0;
    virtual void fill(void* to, int byte, size_t bytes, smla_stream stream) = 0;
    // `rows` times row_bytes, pitch bytes apart.
    virtual void fill_rows(void* to, size_t pitch, int byte, size_t row_bytes, size_t rows,
                           smla_stream stream) = 0;
    virtual void wait(smla_stream stream) = 0;
    // Whether waiting for the stream would break a capture: of it or, for the null stream, of one it waits
    // for.
    virtual bool capturing(smla_stream stream) = 0;
    // Seconds from the first to the last piece of work that `body` queues, as the device's own clock has it;
    // waits.
    virtual double seconds_of(smla_stream stream, const std::function<void()>& body) = 0;

    // What `body` queues on the stream that it is given; none of it runs. Null: the device records nothing,
    // or not this.
    virtual std::unique_ptr<Recording> record(const std::function<void(smla_stream)>& body) {
        (void)body;
        return nullptr;
    }

    // Makes the device current for this thread's calls while it lives.
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
// For calls that wait: throws while the stream is captured, and leaves the capture alone.
void refuse_capture(Device& device, smla_stream stream);

// Memory of a device that frees itself.
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

// A copy of a host tensor in a device's memory, strides and all, and what owns it. On the host: the tensor
// itself.
struct PlacedTensor {
    smla_tensor view{};
    std::shared_ptr<DeviceBuffer> memory;
};
PlacedTensor place(Device& device, const smla_tensor& host);
// A device's tensor in the host's memory, once the stream is done; `memory` owns it.
smla_tensor fetch(Device& device, const smla_tensor& tensor, smla_stream stream,
                  std::unique_ptr<char[]>& memory);

}  // namespace smla
