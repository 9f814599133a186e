// Passes log lines to the caller's function. Without one, log lines go to stderr if SMLA_LOG is set (0 error,
// 1 warning, 2 info).
#pragma once

#include <smla/context.h>

#include <string>

namespace smla {

enum class LogLevel { error = 0, warning = 1, info = 2 };

void log_line(LogLevel level, const std::string& line);
void set_log(smla_log_function function, void* user);

}  // namespace smla
