#include "core/status.h"

#include <cstdio>

namespace smla {

Error::Error(smla_status status, std::string field, std::string got, std::string wanted)
    : status(status), field(std::move(field)), got(std::move(got)), wanted(std::move(wanted)) {
    message_ = this->field + ": got " + this->got + ", wanted " + this->wanted;
}

std::string text(double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.9g", value);
    return buffer;
}

}  // namespace smla
