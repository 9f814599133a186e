// The attention backends, and which of them serves which model on which device.
#pragma once

#include "table.h"

namespace smla::cli {

Table backends_table();
// One row per model, cache type and device.
Table support_table();

}  // namespace smla::cli
