// A workspace of exactly `bytes` on a device, between guards.
#pragma once

#include "core/device.h"
#include "core/workspace.h"
#include "kit/memory.h"

#include <string>

namespace smla::kit {

class Scratch {
public:
    // The header is zero; the rest and the guards have the value `dirt`.
    Scratch(Device& device, size_t bytes, uint8_t dirt = kPoison);
    Workspace get() const { return {data(), bytes_}; }
    uint8_t* data() const;
    void fill_header(uint8_t byte) const;
    std::string complaint() const;  // nonzero counter or write outside the workspace; empty if none

private:
    size_t header() const { return std::min(bytes_, kWorkspaceHeader); }

    Device& device_;
    size_t bytes_;
    uint8_t dirt_;
    DeviceBuffer memory_;
};

}  // namespace smla::kit
