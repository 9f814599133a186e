// Range of valid rows of a cache, for host loops and kernels.
#pragma once

#include "core/host_device.h"

#include <cstdint>

namespace smla {

struct RowRange {
    int64_t capacity = 0, page_rows = 1, page_tokens = 1;

    // Returns whether a row is outside the cache or in the gap between two pages.
    SMLA_HOST_DEVICE bool hole(int64_t row) const {
        return row < 0 || row >= capacity || row % page_rows >= page_tokens;
    }
};

}  // namespace smla
