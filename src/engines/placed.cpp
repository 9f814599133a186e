#include "engines/placed.h"

namespace smla {

void* PlacedMemory::copy_of(const void* host, size_t bytes) {
    Block& block = blocks_[host];
    if (!block.memory.data()) {
        block.bytes = bytes;
        block.memory = DeviceBuffer(device_, bytes);
        device_.upload(block.memory.data(), host, bytes, nullptr);
    }
    return block.memory.data();
}

void PlacedMemory::take(Tensor& tensor) {
    if (!present(tensor) || device_.type() == SMLA_CPU) return;
    tensor = placed_at(tensor, tensor.data ? copy_of(tensor.data, span_bytes(tensor)) : nullptr, device_);
}

void PlacedMemory::take(smla_cache& cache) {
    if (cache.format == SMLA_FORMAT_NONE || device_.type() == SMLA_CPU) return;
    if (cache.data) cache.data = copy_of(cache.data, cache_bytes(cache));
    take(cache.scale_device);
    cache.device_type = device_.type();
    cache.device_index = device_.index();
}

void PlacedMemory::take(const float*& scalar) {
    if (scalar) scalar = static_cast<const float*>(copy_of(scalar, sizeof *scalar));
}

void PlacedMemory::copy_back() const {
    for (const auto& [host, block] : blocks_)
        device_.download(const_cast<void*>(host), block.memory.data(), block.bytes, nullptr);
}

}  // namespace smla
