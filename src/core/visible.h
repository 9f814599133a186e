// Makes bytes of unknown origin safe to print.
#pragma once

#include <string>
#include <string_view>

namespace smla {

void append_hex(std::string& out, char byte);  // \xNN
// Writes control characters, including C1, as \xNN. Other UTF-8, such as a path, is unchanged.
std::string without_controls(std::string_view raw);

}  // namespace smla
