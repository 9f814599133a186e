#include "kit/device_copies.h"

#include "core/workspace.h"
#include "engines/candidate.h"

#include <algorithm>
#include <stdexcept>

namespace smla::kit {

namespace {
constexpr size_t kAlignment = 256;  // of a GPU's allocations: copies are as misaligned as what they copy

size_t misalignment(const void* host) { return reinterpret_cast<uintptr_t>(host) % kAlignment; }

// One allocation for all calls, which nest, because allocating and freeing each block takes longer than a
// call.
struct Arena {
    explicit Arena(Device& device) : memory(device, size_t(256) << 20) {}
    DeviceBuffer memory;
    size_t used = 0;
    uint8_t* top() const { return static_cast<uint8_t*>(memory.data()) + used; }
};
Arena& arena(bool on_gpu) {
    if (on_gpu) {
        static Arena there(gpu());
        return there;
    }
    static Arena here(host_device());
    return here;
}
}  // namespace

Device& gpu() {
    static const std::unique_ptr<Device> device = open_cuda_device(0);
    return *device;
}

// Host memory becomes GPU memory; memory that a test places on another device must stay there.
smla_device_type DeviceCopies::moved(smla_device_type type) const {
    if (!on_gpu_) return type;
    return type == SMLA_CPU ? smla_device_type(SMLA_CUDA) : type == SMLA_CUDA ? SMLA_CPU : type;
}

void* DeviceCopies::of(const void* host, size_t bytes, bool comes_back) {
    if (!host) return nullptr;
    auto* at = static_cast<uint8_t*>(const_cast<void*>(host));
    const BlockRanges block = block_around(at);
    const Range range = !block.whole.begin ? Range{at, bytes} : bare_ ? block.payload : block.whole;
    for (const Copy& copy : copies_)
        if (copy.host.begin == range.begin && copy.host.bytes == range.bytes)
            return copy.data + (at - range.begin);
    copies_.push_back({range, place(range), comes_back});
    return copies_.back().data + (at - range.begin);
}

uint8_t* DeviceCopies::place(const Range& host) {
    if (bare_) return static_cast<uint8_t*>(bare_memory_.emplace_back(bare_(host.bytes)).get());
    if (!there_.begin) there_.begin = arena(on_gpu_).top();
    const size_t skipped = misalignment(host.begin),
                 room = round_up(skipped + host.bytes, kAlignment) + kAlignment;
    if (arena(on_gpu_).used + room > arena(on_gpu_).memory.bytes())
        throw std::length_error("a call larger than the arena");
    uint8_t* const at = arena(on_gpu_).top() + skipped;
    arena(on_gpu_).used += room;
    there_.bytes += room;
    return at;
}

DeviceCopies::~DeviceCopies() {
    if (there_.begin) arena(on_gpu_).used -= there_.bytes;
}

void DeviceCopies::move(smla_tensor& tensor) {
    if (tensor.ndim == 0 && !tensor.data) return;
    tensor.data = of(tensor.data, extent(tensor));
    tensor.device_type = moved(tensor.device_type);
}

void DeviceCopies::move(smla_cache& cache) {
    if (cache.format == SMLA_FORMAT_NONE && !cache.data) return;
    cache.data = of(cache.data, extent(cache));
    cache.device_type = moved(cache.device_type);
    move(cache.scale_device);
}

void DeviceCopies::move(const float*& scalar) {
    scalar = static_cast<const float*>(of(scalar, sizeof *scalar, false));
}

void DeviceCopies::send() const {
    staged_.assign(there_.bytes, kPoison);
    for (const Copy& copy : copies_)
        if (bare_) device().upload(copy.data, copy.host.begin, copy.host.bytes, nullptr);
        else std::copy_n(copy.host.begin, copy.host.bytes, staged_.begin() + (copy.data - there_.begin));
    device().upload(there_.begin, staged_.data(), staged_.size(), nullptr);
}

void DeviceCopies::fetch() const {
    device().wait(nullptr);
    device().download(staged_.data(), there_.begin, staged_.size(), nullptr);
    for (const Copy& copy : copies_) {
        if (!copy.comes_back) continue;
        if (bare_) device().download(copy.host.begin, copy.data, copy.host.bytes, nullptr);
        else std::copy_n(staged_.begin() + (copy.data - there_.begin), copy.host.bytes, copy.host.begin);
    }
}

}  // namespace smla::kit
