#include "core/status.h"

#include "core/message.h"
#include "core/visible.h"

#include <cmath>
#include <cstdio>

namespace smla {

Error::Error(smla_status status, std::string field, std::string got, std::string wanted)
    : status(status), field(std::move(field)), got(std::move(got)), wanted(std::move(wanted)) {
    // Field and value may come from an untrusted file, and terminals show the message.
    message_ = without_controls(this->field + ": " + got_and_wanted(this->got, this->wanted));
}

std::string text(double value) {
    char buffer[32];
    const bool whole = std::fabs(value) < 1e10 && value == std::floor(value);
    std::snprintf(buffer, sizeof buffer, whole ? "%.0f" : "%.9g", value);
    return buffer;
}

}  // namespace smla
