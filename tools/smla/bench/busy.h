// Detects other programs that use this machine during a measurement.
#pragma once

#include "engines/context.h"

#include <string>

namespace smla::cli {

double load_average();  // average over the last minute; -1 if unknown
// Returns why times may be too long: more runnable threads than cores, or other work on the GPU. Returns an
// empty string if neither was detected. Call it while this process computes nothing.
std::string why_busy(Context& context);

}  // namespace smla::cli
