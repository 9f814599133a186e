#include "kit/scratch.h"

#include <algorithm>

namespace smla::kit {

namespace {
// Devices align memory to 256 bytes, so a workspace after this guard is aligned to 64, as callers promise.
constexpr size_t kGuard = 320;
}  // namespace

Scratch::Scratch(Device& device, size_t bytes, uint8_t dirt)
    : device_(device), bytes_(bytes), dirt_(dirt), memory_(device, bytes + 2 * kGuard) {
    device.fill(memory_.data(), dirt, memory_.bytes(), nullptr);
    fill_header(0);
}

uint8_t* Scratch::data() const { return static_cast<uint8_t*>(memory_.data()) + kGuard; }

void Scratch::fill_header(uint8_t byte) const { device_.fill(data(), byte, header(), nullptr); }

std::string Scratch::complaint() const {
    std::vector<uint8_t> all(memory_.bytes());
    device_.download(all.data(), memory_.data(), all.size(), nullptr);
    const uint8_t *first = all.data(), *data = first + kGuard, *last = first + all.size();
    if (!std::all_of(data, data + header(), [](uint8_t byte) { return byte == 0; }))
        return "left a counter of the workspace that is not zero";
    const auto dirty = [&](uint8_t byte) { return byte == dirt_; };
    if (!std::all_of(first, data, dirty)) return "wrote before its workspace";
    if (!std::all_of(data + bytes_, last, dirty))
        return text("wrote past its workspace of ", bytes_, " bytes");
    return "";
}

}  // namespace smla::kit
