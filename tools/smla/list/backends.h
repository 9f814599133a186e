// The attention backends, and which of them serves which model on which device.
#pragma once

#include "table.h"

namespace smla::cli {

Table backends_table();
// One row per model, cache type and device.
Table support_table();
// Returns the same as a short table for text output: one row per device, one column per model, cache type
// auto.
Table support_matrix();

}  // namespace smla::cli
