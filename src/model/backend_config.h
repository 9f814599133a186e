// Describes a model's layer for attention backends.
#pragma once

#include "backends/backend.h"
#include "model/config.h"

namespace smla {

// Returns dimensions, scale and kind; the caller sets device, cache type and maxima (1 by default).
BackendArgs backend_args(const AttentionConfig& config, int64_t layer);

}  // namespace smla
