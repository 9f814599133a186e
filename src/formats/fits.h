// Checks whether a record format fits a model: width, position of the rope part, writer bits. Each function
// returns the reason why the format does not fit, or an empty text.
#pragma once

#include "formats/format.h"

#include <smla/types.h>

#include <cstdint>
#include <string>

namespace smla {

std::string why_not_width(smla_format id, int64_t width);
// Returns the requirement that a cache's `writer` violates, or an empty text.
std::string why_not_writer(const Format& format, smla_writer writer);
// `hybrid`: V4, whose keys are also the values.
std::string why_not_record(smla_format id, int64_t width, int64_t rope, bool hybrid);

}  // namespace smla
