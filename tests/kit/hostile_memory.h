// Guarded memory whose tensors and caches have random strides, gaps and alignments.
#pragma once

#include "kit/memory.h"

#include <initializer_list>

namespace smla::kit {

// Whether the elements of a tensor's last dimension are dense or may have gaps.
enum class Inner { dense, any };

struct CacheShape {
    smla_format format = SMLA_FORMAT_NONE;
    int64_t width = 0, pages = 1;
    int32_t page_tokens = 64;
};

class HostileMemory : public GuardedMemory {
public:
    // `aligned`: rows and pages begin at multiples of 64 bytes, and elements are contiguous.
    explicit HostileMemory(uint64_t seed, bool aligned = false, bool walls = false)
        : GuardedMemory(walls), random_(seed), aligned_(aligned) {}

    // Returns a tensor with random gaps between rows, and between elements if `inner` allows it.
    Tensor tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, Inner inner = Inner::dense);
    // Returns a cache with random gaps between rows and pages, whose pages sometimes interleave with those of
    // other layers.
    smla_cache cache(const CacheShape& shape);

private:
    size_t skew(size_t alignment, size_t bytes);

    Random random_;
    bool aligned_;
};

}  // namespace smla::kit
