#include "backends/device.h"

#include "core/limits.h"
#include "core/status.h"
#include "engines/candidate.h"

#include <charconv>

namespace smla {

namespace {

struct Known {
    int32_t capability, multiprocessors;
    int64_t gibibytes;
};
// A common device of each kind: A100, RTX 3090, L40S, H100, B200, RTX PRO 6000, GB10.
constexpr Known kKnown[] = {{80, 108, 80},   {86, 82, 24},   {89, 142, 48}, {90, 132, 80},
                            {100, 148, 180}, {120, 188, 96}, {121, 48, 128}};

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
    device.type = SMLA_CUDA;
    const std::string_view digits = name.substr(0, 3) == "sm_" ? name.substr(3) : std::string_view();
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), device.capability);
    SMLA_CHECK(error == std::errc() && end == digits.data() + digits.size() && device.capability >= 10 &&
                   device.capability < 1000,
               "device", std::string(name), "cpu, or sm_ and a compute capability: sm_80, sm_90, sm_120");
    for (const Known& known : kKnown) {
        if (known.capability != device.capability) continue;
        device.multiprocessors = known.multiprocessors;
        device.memory_bytes = known.gibibytes << 30;
    }
    return device;
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
    return {"cuda", text("no engine of this build runs attention backends on ", device_name(device))};
}

}  // namespace smla
