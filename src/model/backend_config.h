// A model's layer as attention backends want it described.
#pragma once

#include "backends/backend.h"
#include "model/config.h"

namespace smla {

// Dimensions, scale and kind; the caller adds the device, cache type and maxima (1 until then).
BackendArgs backend_args(const AttentionConfig& config, int64_t layer);

}  // namespace smla
