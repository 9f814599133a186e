// Does a record of a fixed layout describe a model's dimensions? Its rope part has a fixed place.
#pragma once

#include "formats/format.h"

#include <smla/types.h>

#include <cstdint>
#include <string>

namespace smla {

// Reasons in words, empty: it does. `hybrid`: V4, whose keys are their own values.
std::string why_not_width(smla_format id, int64_t width);
// What a cache's writer has to be.
std::string why_not_writer(const Format& format, smla_writer writer);
std::string why_not_record(smla_format id, int64_t width, int64_t rope, bool hybrid);

}  // namespace smla
