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

uint8_t* DeviceCopies::Copy::data() const {
    return static_cast<uint8_t*>(memory.data()) + misalignment(host.begin);
}

void* DeviceCopies::of(const void* host, size_t bytes, bool comes_back) {
    if (!host) return nullptr;
    auto* at = static_cast<uint8_t*>(const_cast<void*>(host));
    Range range = block_around(at);
    if (!range.begin) range = {at, bytes};
    for (const Copy& copy : copies_)
        if (copy.host.begin == range.begin && copy.host.bytes == range.bytes)
            return copy.data() + (at - range.begin);
    const size_t room = range.bytes + kAlignment;
    copies_.push_back({range, smla::DeviceBuffer(gpu(), room), comes_back});
    gpu().fill(copies_.back().memory.data(), kPoison, room, nullptr);
    return copies_.back().data() + (at - range.begin);
}

void DeviceCopies::move(smla_tensor& tensor) {
    if (tensor.ndim == 0 && !tensor.data) return;
    tensor.data = of(tensor.data, block_around(tensor.data).begin ? 0 : smla::span_bytes(tensor));
    tensor.device_type = moved(tensor.device_type);
}

void DeviceCopies::move(smla_cache& cache) {
    if (cache.format == SMLA_FORMAT_NONE && !cache.data) return;
    cache.data = of(cache.data, block_around(cache.data).begin ? 0 : smla::cache_bytes(cache));
    cache.device_type = moved(cache.device_type);
    move(cache.scale_device);
}

void DeviceCopies::move(const float*& scalar) {
    scalar = static_cast<const float*>(of(scalar, sizeof *scalar, false));
}

void DeviceCopies::send() const {
    for (const Copy& copy : copies_) gpu().upload(copy.data(), copy.host.begin, copy.host.bytes, nullptr);
}

void DeviceCopies::fetch() const {
    gpu().wait(nullptr);
    for (const Copy& copy : copies_)
        if (copy.comes_back) gpu().download(copy.host.begin, copy.data(), copy.host.bytes, nullptr);
}

}  // namespace contract
