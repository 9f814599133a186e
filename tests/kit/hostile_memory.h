// Guarded memory whose tensors and caches have random strides, gaps and alignments.
#pragma once

#include "kit/memory.h"

#include <initializer_list>

namespace smla::kit {

// How far apart a tensor's elements may lie.
enum class Inner { dense, any };

struct CacheShape {
    smla_format format = SMLA_FORMAT_NONE;
    int64_t width = 0, pages = 1;
    int32_t page_tokens = 64;
};

class HostileMemory : public GuardedMemory {
public:
    // `aligned`: rows and pages begin at multiples of 64 bytes, and elements lie side by side.
    explicit HostileMemory(uint64_t seed, bool aligned = false, bool walls = false)
        : GuardedMemory(walls), random_(seed), aligned_(aligned) {}

    // With random gaps between rows, and between elements where `inner` lets them.
    Tensor tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, Inner inner = Inner::dense);
    // With random gaps between rows and pages, sometimes pages that interleave with those of other layers.
    smla_cache cache(const CacheShape& shape);

private:
    size_t skew(size_t alignment, size_t bytes);

    Random random_;
    bool aligned_;
};

}  // namespace smla::kit
