#include "machine.h"

#include "core/cpu_features.h"
#include "core/device.h"
#include "core/limits.h"
#include "core/status.h"
#include "engines/run.h"
#include "names.h"

#include <sys/utsname.h>

#include <fstream>
#include <sstream>

namespace smla::cli {

namespace {

// The value of the first line "key : value".
std::string value_of(const char* file, const std::string& key) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
        const size_t colon = line.find(':');
        if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
        const size_t first = line.find_first_not_of(" \t", colon + 1);
        return first == std::string::npos ? "" : line.substr(first);
    }
    return "";
}

int64_t kilobytes(const char* key) {
    std::istringstream value(value_of("/proc/meminfo", key));
    int64_t number = 0;
    value >> number;
    return number * 1024;
}

}  // namespace

std::string cpu_model() {
    const std::string model = value_of("/proc/cpuinfo", "model name");
    if (!model.empty()) return model;
    utsname name{};  // Arm's /proc/cpuinfo has numbers only
    const std::string machine = uname(&name) == 0 ? name.machine : "unknown";
    const std::string implementer = value_of("/proc/cpuinfo", "CPU implementer");
    if (implementer.empty()) return machine;
    return text(machine, ", implementer ", implementer, " part ", value_of("/proc/cpuinfo", "CPU part"));
}

int64_t memory_total() { return kilobytes("MemTotal"); }
int64_t memory_available() { return kilobytes("MemAvailable"); }

std::string huge_pages() {
    std::ifstream in("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string line;
    std::getline(in, line);
    const size_t open = line.find('['), close = line.find(']');
    return open == std::string::npos ? "unknown" : line.substr(open + 1, close - open - 1);
}

std::string compiler() {
#if defined(__clang__)
    return text("clang ", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#else
    return text("gcc ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#endif
}

std::string build_type() {
#if defined(__OPTIMIZE__)
    return "optimised";
#else
    return "debug";
#endif
}

std::string why_no_gpu() { return why_no_engine(SMLA_ENGINE_CUDA); }

Document gpu_facts() {
    const std::string why = why_no_gpu();
    if (!why.empty()) return {{"why_none", why}};
    Document devices = Document::array();
    std::string failed;
    try {
        for (int32_t index = 0;; ++index) {
            const auto device = open_cuda_device(index);
            const DeviceFacts& gpu = device->facts();
            devices.push_back({{"name", gpu.name},
                               {"capability", gpu.capability},
                               {"multiprocessors", gpu.multiprocessors},
                               {"memory_bytes", gpu.memory_bytes}});
        }
    } catch (const Error& error) {
        if (error.field != "args.device_index") failed = error.what();  // else there are no more of them
    }
    if (devices.empty()) return {{"why_none", failed}};
    Document out{{"devices", devices}};
    if (!failed.empty()) out["why_no_more"] = failed;
    return out;
}

Document machine_facts() {
    return {{"version", version_text()},
            {"build", text(compiler(), ", ", build_type())},
            {"cpu", cpu_model()},
            {"cores", usable_cores()},
            {"best_isa", isa_name(best_isa())},
            {"memory_bytes", memory_total()},
            {"gpu", gpu_facts()}};
}

}  // namespace smla::cli
