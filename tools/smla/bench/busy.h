// Other programs that use this machine while it is measured.
#pragma once

#include "engines/context.h"

#include <string>

namespace smla::cli {

double load_average();  // of the last minute; -1: unknown
// Why times may be too long: more runnable threads than cores, or other work on the GPU. Empty: nothing was
// seen. Call it while this process computes nothing.
std::string why_busy(Context& context);

}  // namespace smla::cli
