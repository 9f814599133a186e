#include "device_copies.h"

#include "core/tensor.h"
#include "formats/format.h"

namespace contract {

namespace {
constexpr size_t kAlignment = 256;  // of a GPU's allocations: copies are as misaligned as what they copy

size_t misalignment(const void* host) { return reinterpret_cast<uintptr_t>(host) % kAlignment; }

// What the host calls its own is the GPU's there; what a test puts elsewhere must stay elsewhere.
smla_device_type moved(smla_device_type type) {
    return type == SMLA_CPU ? smla_device_type(SMLA_CUDA) : type == SMLA_CUDA ? SMLA_CPU : type;
}
}  // namespace

void* DeviceCopies::of(const void* host, size_t bytes, bool comes_back) {
    if (!host) return nullptr;
    auto* at = static_cast<uint8_t*>(const_cast<void*>(host));
    const BlockRanges block = block_around(at);
    const Range range = !block.whole.begin ? Range{at, bytes} : bare_ ? block.payload : block.whole;
    for (const Copy& copy : copies_)
        if (copy.host.begin == range.begin && copy.host.bytes == range.bytes)
            return copy.data + (at - range.begin);
    Copy copy{range, nullptr, nullptr, comes_back};
    if (bare_) {
        copy.memory = bare_(range.bytes);
        copy.data = static_cast<uint8_t*>(copy.memory.get());
    } else {
        auto buffer = std::make_shared<smla::DeviceBuffer>(gpu(), range.bytes + kAlignment);
        gpu().fill(buffer->data(), kPoison, buffer->bytes(), nullptr);
        copy.data = static_cast<uint8_t*>(buffer->data()) + misalignment(range.begin);
        copy.memory = std::move(buffer);
    }
    copies_.push_back(copy);
    return copy.data + (at - range.begin);
}

void DeviceCopies::move(smla_tensor& tensor) {
    if (tensor.ndim == 0 && !tensor.data) return;
    tensor.data = of(tensor.data, block_around(tensor.data).whole.begin ? 0 : smla::span_bytes(tensor));
    tensor.device_type = moved(tensor.device_type);
}

void DeviceCopies::move(smla_cache& cache) {
    if (cache.format == SMLA_FORMAT_NONE && !cache.data) return;
    cache.data = of(cache.data, block_around(cache.data).whole.begin ? 0 : smla::cache_bytes(cache));
    cache.device_type = moved(cache.device_type);
    move(cache.scale_device);
}

void DeviceCopies::move(const float*& scalar) {
    scalar = static_cast<const float*>(of(scalar, sizeof *scalar, false));
}

void DeviceCopies::send() const {
    for (const Copy& copy : copies_) gpu().upload(copy.data, copy.host.begin, copy.host.bytes, nullptr);
}

void DeviceCopies::fetch() const {
    gpu().wait(nullptr);
    for (const Copy& copy : copies_)
        if (copy.comes_back) gpu().download(copy.host.begin, copy.data, copy.host.bytes, nullptr);
}

}  // namespace contract
