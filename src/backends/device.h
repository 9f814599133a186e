// Devices as backends see them: real, or only described.
#pragma once

#include "core/device.h"

#include <smla/backend.h>

#include <string>
#include <string_view>

namespace smla {

using DeviceInfo = smla_device_info;

inline int32_t major_capability(const DeviceInfo& device) {
    return device.type == SMLA_CUDA ? device.capability / 10 : 0;
}
std::string device_name(const DeviceInfo& device);  // "cpu", "sm_90"
// By name; see smla_describe_device.
DeviceInfo describe_device(std::string_view name);

// What a context runs on.
DeviceInfo device_info(const Device& device);

// The engine of this library for a device, and why this build cannot run it (empty: it can).
struct EngineOfDevice {
    const char* name;
    std::string refusal;
};
EngineOfDevice engine_of(const DeviceInfo& device);

}  // namespace smla
