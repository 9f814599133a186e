// Whether a record format fits a model: width, place of the rope part, writer bits. Each function gives the
// reason in words; empty: it fits.
#pragma once

#include "formats/format.h"

#include <smla/types.h>

#include <cstdint>
#include <string>

namespace smla {

std::string why_not_width(smla_format id, int64_t width);
// What a cache's `writer` has to be; empty: it is.
std::string why_not_writer(const Format& format, smla_writer writer);
// `hybrid`: V4, whose keys are their own values.
std::string why_not_record(smla_format id, int64_t width, int64_t rope, bool hybrid);

}  // namespace smla
