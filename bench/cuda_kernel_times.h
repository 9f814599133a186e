// Start and end of kernels as CUPTI records them: benchmarks of other attention libraries report these times.
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
