// When kernels ran, as CUPTI records it: the benchmarks of other engines report times so.
#pragma once

#include <cstdint>
#include <vector>

namespace smla::bench {

struct KernelSpan {
    uint64_t start_ns, end_ns;
};

// Records kernels from its construction to `take`. CUPTI is loaded at run time, from what SMLA_CUPTI
// names if it is set; one recording at a time.
class KernelRecording {
public:
    static bool possible();  // CUPTI is there; ask before the first

    KernelRecording();
    std::vector<KernelSpan> take();  // by start; ends the recording
};

}  // namespace smla::bench
