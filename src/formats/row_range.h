// Which rows a cache has, for host loops and kernels.
#pragma once

#include "core/host_device.h"

#include <cstdint>

namespace smla {

struct RowRange {
    int64_t capacity = 0, page_rows = 1, page_tokens = 1;

    // Outside the cache, or between the tokens of two pages.
    SMLA_HOST_DEVICE bool hole(int64_t row) const {
        return row < 0 || row >= capacity || row % page_rows >= page_tokens;
    }
};

}  // namespace smla
