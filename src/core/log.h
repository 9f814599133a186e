// Log lines go to the caller's function, else to stderr if SMLA_LOG is set (0 error, 1 warning, 2 info), else
// nowhere.
#pragma once

#include <smla/context.h>

#include <string>

namespace smla {

enum class LogLevel { error = 0, warning = 1, info = 2 };

void log_line(LogLevel level, const std::string& line);
void set_log(smla_log_function function, void* user);

}  // namespace smla
