// Devices as backends see them: real, or only described.
#pragma once

#include <smla/backend.h>

#include <string>
#include <string_view>

namespace smla {

using Device = smla_device_info;

inline int32_t major_capability(const Device& device) {
    return device.type == SMLA_CUDA ? device.capability / 10 : 0;
}
std::string device_name(const Device& device);  // "cpu", "sm_90"
// By name; see smla_describe_device.
Device describe_device(std::string_view name);

// The engine of this library for a device, and why this build cannot run it (empty: it can).
struct EngineOfDevice {
    const char* name;
    std::string refusal;
};
EngineOfDevice engine_of(const Device& device);

}  // namespace smla
