#include "devices.h"

#include "core/status.h"
#include "names.h"

namespace smla::cli {

namespace {

struct Product {
    const char *name, *capability;
    int32_t multiprocessors;
    int64_t gibibytes;
};
// Multiprocessors and nominal memory from NVIDIA's data sheets (H200: 141 GB).
constexpr Product kProducts[] = {
    {"A100", "sm_80", 108, 80},      {"A6000", "sm_86", 84, 48},   {"L40", "sm_89", 142, 48},
    {"4090", "sm_89", 128, 24},      {"H100", "sm_90", 132, 80},   {"H200", "sm_90", 132, 140},
    {"H20", "sm_90", 78, 96},        {"B200", "sm_100", 148, 180}, {"5090", "sm_120", 170, 32},
    {"PRO-6000", "sm_120", 188, 96}, {"GB10", "sm_121", 48, 128}};

}  // namespace

std::vector<std::string> device_products() {
    std::vector<std::string> names;
    for (const Product& each : kProducts) names.emplace_back(each.name);
    return names;
}

bool is_product(const std::string& name) {
    for (const Product& each : kProducts)
        if (lower_case(name) == lower_case(each.name)) return true;
    return false;
}

std::string products_of(const std::string& capability) {
    std::vector<std::string> names;
    for (const Product& each : kProducts)
        if (capability == each.capability) names.emplace_back(each.name);
    return joined(names);
}

DeviceInfo parse_device(const std::string& option, const std::string& name) {
    const std::string wanted = lower_case(name);
    for (const Product& each : kProducts) {
        if (wanted != lower_case(each.name)) continue;
        DeviceInfo device = describe_device(each.capability);
        device.multiprocessors = each.multiprocessors;
        device.memory_bytes = each.gibibytes << 30;
        return device;
    }
    try {
        return describe_device(wanted);
    } catch (const Error& error) {
        std::vector<std::string> names = device_products(), candidates{"cpu", "sm_90", "sm_100", "sm_120"};
        for (const std::string& each : names) candidates.push_back(lower_case(each));
        std::string near = suggestion(wanted, candidates);
        for (const std::string& each : names)
            if (near == "; did you mean " + lower_case(each) + "?") near = "; did you mean " + each + "?";
        fail(SMLA_INVALID_ARGUMENT, option, name, joined(names) + ", " + error.wanted + near);
    }
}

}  // namespace smla::cli
