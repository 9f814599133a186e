#include "core/device.h"

#include "core/huge_pages.h"
#include "core/tensor.h"
#include "core/workspace.h"

#include <chrono>
#include <cstring>

namespace smla {

namespace {

class HostDevice final : public Device {
public:
    smla_device_type type() const override { return SMLA_CPU; }
    int32_t index() const override { return 0; }
    const DeviceFacts& facts() const override { return facts_; }
    void* allocate(size_t bytes) override {
        void* memory = allocate_block(bytes ? bytes : 1, kCacheLine);
        if (!memory)
            fail(SMLA_OUT_OF_MEMORY, "memory", text("no memory for ", bytes, " bytes"), "enough memory");
        return memory;
    }
    void release(void* memory) noexcept override { std::free(memory); }
    bool reaches(const void*) const override { return true; }
    void upload(void* to, const void* from, size_t bytes, smla_stream) override {
        if (bytes) std::memcpy(to, from, bytes);
    }
    void download(void* to, const void* from, size_t bytes, smla_stream) override {
        if (bytes) std::memcpy(to, from, bytes);
    }
    void fill(void* to, int byte, size_t bytes, smla_stream) override {
        if (bytes) std::memset(to, byte, bytes);
    }
    void fill_rows(void* to, size_t pitch, int byte, size_t row_bytes, size_t rows, smla_stream) override {
        for (size_t i = 0; i < rows && row_bytes; ++i)
            std::memset(static_cast<char*>(to) + i * pitch, byte, row_bytes);
    }
    void wait(smla_stream) override {}
    bool capturing(smla_stream) override { return false; }
    double seconds_of(smla_stream, const std::function<void()>& body) override {
        const auto start = std::chrono::steady_clock::now();
        body();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

private:
    int enter() override { return 0; }
    void leave(int) noexcept override {}
    DeviceFacts facts_;
};

}  // namespace

namespace {
[[noreturn]] void fail_on_host() { fail(SMLA_INTERNAL, "device", "the host", "a GPU"); }
}  // namespace

void Device::build_plan(const PlanJob&, smla_stream) { fail_on_host(); }
void Device::fill_metadata(const MetadataJob&, smla_stream) { fail_on_host(); }
std::unique_ptr<StagingBuffer> Device::open_staging_buffer(size_t) { fail_on_host(); }
void Device::count_up(const int32_t*, int32_t*, int64_t, int64_t, smla_stream) { fail_on_host(); }
void Device::note_bad_value(const IndexScan&, Stage, const Env&) { fail_on_host(); }

void refuse_capture(Device& device, smla_stream stream) {
    SMLA_CHECK(!device.capturing(stream), "stream", "a stream in capture",
               "a stream that is not being captured, because the call waits for its work");
}

Device& host_device() {
    static HostDevice device;
    return device;
}

PlacedTensor place(Device& device, const Tensor& host) {
    PlacedTensor out{host, nullptr};
    if (device.type() == SMLA_CPU || !present(host)) return out;
    const size_t bytes = span_bytes(host);
    out.memory = std::make_shared<DeviceBuffer>(device, bytes);
    device.upload(out.memory->data(), host.data, bytes, nullptr);
    out.view = placed_at(host, out.memory->data(), device);
    return out;
}

Tensor fetch(Device& device, const Tensor& tensor, smla_stream stream, std::unique_ptr<char[]>& memory) {
    const size_t bytes = span_bytes(tensor);
    memory = std::make_unique<char[]>(bytes ? bytes : 1);
    device.download(memory.get(), tensor.data, bytes, stream);
    device.wait(stream);
    Tensor out = tensor;  // gaps were copied, so the strides are unchanged
    out.data = memory.get();
    out.device_type = SMLA_CPU;
    out.device_index = 0;
    return out;
}

}  // namespace smla
