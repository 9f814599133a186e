#include "backends/device.h"

#include "core/limits.h"
#include "core/status.h"
#include "engines/candidate.h"

#include <iterator>

namespace smla {

namespace {

struct Known {
    int32_t capability, multiprocessors;  // 0: unknown
    int64_t gibibytes;
};
// Compute capabilities that the CUDA engine supports, with the numbers of a common GPU: A100, RTX 3090, L40S,
// H100, B200, RTX PRO 6000, GB10.
constexpr Known kKnown[] = {{80, 108, 80}, {86, 82, 24},    {87, 0, 0},  {88, 0, 0},     {89, 142, 48},
                            {90, 132, 80}, {100, 148, 180}, {103, 0, 0}, {120, 188, 96}, {121, 48, 128}};

std::string known_names() {
    std::string out = "cpu";
    for (const Known& each : kKnown)
        out += text(&each == std::end(kKnown) - 1 ? " or sm_" : ", sm_", each.capability);
    return out;
}

}  // namespace

std::string device_name(const DeviceInfo& device) {
    return device.type == SMLA_CPU ? "cpu" : text("sm_", device.capability);
}

DeviceInfo describe_device(std::string_view name) {
    DeviceInfo device{};
    device.struct_size = sizeof device;
    if (name == "cpu") {
        device.multiprocessors = usable_cores();
        return device;
    }
    for (const Known& known : kKnown) {
        if (name != text("sm_", known.capability)) continue;
        device.type = SMLA_CUDA;
        device.capability = known.capability;
        device.multiprocessors = known.multiprocessors;
        device.memory_bytes = known.gibibytes << 30;
        return device;
    }
    fail(SMLA_INVALID_ARGUMENT, "device", std::string(name), known_names());
}

DeviceInfo device_info(const Device& device) {
    if (device.type() == SMLA_CPU) return describe_device("cpu");
    DeviceInfo out{};
    out.struct_size = sizeof out;
    out.type = device.type();
    out.capability = device.facts().capability;
    out.multiprocessors = device.facts().multiprocessors;
    out.memory_bytes = int64_t(device.facts().memory_bytes);
    return out;
}

EngineOfDevice engine_of(const DeviceInfo& device) {
    if (device.type == SMLA_CPU) return {"cpu", ""};
    if (has_code_for(device.capability)) return {"cuda", ""};
    return {"cuda", text("no engine of this build supports attention backends on ", device_name(device))};
}

}  // namespace smla
