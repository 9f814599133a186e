// When kernels ran, as CUPTI records it: what the peers' benchmarks of docs/kernels/cuda_attend.md report.
#pragma once

#include <cstdint>
#include <vector>

namespace smla::bench {

struct KernelSpan {
    uint64_t start_ns, end_ns;
};

// Records kernels from its construction to `take`. CUPTI is loaded at run time, from SMLA_CUPTI if that names
// a library; one recording at a time.
class KernelRecording {
public:
    static bool possible();  // CUPTI was found

    KernelRecording();
    std::vector<KernelSpan> take();  // by start; ends the recording
};

}  // namespace smla::bench
