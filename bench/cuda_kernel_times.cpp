#include "cuda_kernel_times.h"

#include "core/library.h"
#include "core/status.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace smla::bench {

namespace {

// Values and records of CUPTI's interface (cupti_activity.h), so that the build needs no header of it.
constexpr int kConcurrentKernel = 10;  // CUpti_ActivityKind
constexpr uint32_t kForced = 1;        // CUpti_ActivityFlag: records that are not finished too
struct Record {                        // the beginning of CUpti_ActivityKernel5 and all later ones
    uint32_t kind, unused[3];
    uint64_t start, end;
};
using Request = void (*)(uint8_t** buffer, size_t* bytes, size_t* most_records);
using Complete = void (*)(void*, uint32_t, uint8_t* buffer, size_t bytes, size_t valid);

struct Cupti {
    int (*callbacks)(Request, Complete) = nullptr;
    int (*enable)(int kind) = nullptr;
    int (*disable)(int kind) = nullptr;
    int (*flush)(uint32_t flag) = nullptr;
    int (*next)(uint8_t* buffer, size_t valid, Record** record) = nullptr;
    std::string library;
};

std::vector<KernelSpan> recorded;
const Cupti& cupti();

void request(uint8_t** buffer, size_t* bytes, size_t* most_records) {
    *bytes = size_t(1) << 20;
    *buffer = static_cast<uint8_t*>(::operator new(*bytes, std::align_val_t(8)));
    *most_records = 0;
}
void complete(void*, uint32_t, uint8_t* buffer, size_t, size_t valid) {
    for (Record* record = nullptr; cupti().next(buffer, valid, &record) == 0;)
        if (int(record->kind) == kConcurrentKernel) recorded.push_back({record->start, record->end});
    ::operator delete(buffer, std::align_val_t(8));
}

void find(Symbols& symbol, Cupti& out) {
    symbol(out.callbacks, "cuptiActivityRegisterCallbacks");
    symbol(out.enable, "cuptiActivityEnable");
    symbol(out.disable, "cuptiActivityDisable");
    symbol(out.flush, "cuptiActivityFlushAll");
    symbol(out.next, "cuptiActivityGetNextRecord");
}
const Cupti& cupti() {
    static const Cupti loaded =
        load_library<Cupti>("SMLA_CUPTI",
                            {"libcupti.so.13", "libcupti.so", "/usr/local/cuda/lib64/libcupti.so",
                             "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"},
                            find);
    return loaded;
}

void check(int code, const char* what) {
    if (code != 0) fail(SMLA_DEVICE_ERROR, what, text("code ", code), "0");
}

}  // namespace

bool KernelRecording::possible() {
    static const bool registered = cupti().next && cupti().callbacks(request, complete) == 0;
    return registered;
}

KernelRecording::KernelRecording() {
    recorded.clear();
    check(cupti().enable(kConcurrentKernel), "cuptiActivityEnable");
}

std::vector<KernelSpan> KernelRecording::take() {
    check(cupti().flush(kForced), "cuptiActivityFlushAll");
    check(cupti().disable(kConcurrentKernel), "cuptiActivityDisable");
    std::sort(recorded.begin(), recorded.end(),
              [](const KernelSpan& a, const KernelSpan& b) { return a.start_ns < b.start_ns; });
    return std::move(recorded);
}

}  // namespace smla::bench
