// Descriptions of devices for backends; a described device need not exist.
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
// Returns the description of a device by its name; see smla_describe_device.
DeviceInfo describe_device(std::string_view name);

// Returns the description of an existing device.
DeviceInfo device_info(const Device& device);

// This library's engine for a device, and why this build cannot run it (empty if it can).
struct EngineOfDevice {
    const char* name;
    std::string refusal;
};
EngineOfDevice engine_of(const DeviceInfo& device);

}  // namespace smla
