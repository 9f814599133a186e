#include "busy.h"

#include "core/limits.h"
#include "core/status.h"
#include "cuda_peaks.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

namespace smla::cli {

namespace {

// Returns the number of runnable threads except this one, from the fourth field of /proc/loadavg.
int others_running() {
    int running = 0;
    std::FILE* const file = std::fopen("/proc/loadavg", "re");
    if (!file) return 0;
    if (std::fscanf(file, "%*f %*f %*f %d/", &running) != 1) running = 1;
    std::fclose(file);
    return std::max(0, running - 1);
}

// Returns the percentage of the last second in which the GPU ran kernels, from NVML; -1 if unknown.
int gpu_utilization(Device& device) {
    Device::Scope scope(device);
    const std::string bus = bench::pci_bus_id();
    void* const nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!nvml || bus.empty()) return -1;
    struct Rates {
        unsigned gpu, memory;
    } rates{};
    void* handle = nullptr;
    const auto init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
    const auto find =
        reinterpret_cast<int (*)(const char*, void**)>(dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2"));
    const auto read = reinterpret_cast<int (*)(void*, Rates*)>(dlsym(nvml, "nvmlDeviceGetUtilizationRates"));
    if (!init || !find || !read || init() || find(bus.c_str(), &handle) || read(handle, &rates)) return -1;
    return int(rates.gpu);
}

}  // namespace

double load_average() {
    double load = -1;
    return getloadavg(&load, 1) == 1 ? load : -1;
}

std::string why_busy(Context& context) {
    if (context.device().type() != SMLA_CPU) {
        const int used = gpu_utilization(context.device());
        return used > 5 ? text("other programs use the GPU (", used, " % of the last second)") : "";
    }
    std::array<int, 9> samples;
    for (int& each : samples) {
        each = others_running();
        usleep(10000);
    }
    std::nth_element(samples.begin(), samples.begin() + 4, samples.end());
    const int others = samples[4], threads = context.pool().threads(), cores = usable_cores();
    if (others + threads <= cores) return "";
    return fmt::format("{} other {} on {} cores (load average {:.1f})", others,
                       others == 1 ? "thread runs" : "threads run", cores, load_average());
}

}  // namespace smla::cli
