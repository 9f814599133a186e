// Bytes of unknown origin in text for people.
#pragma once

#include <string>
#include <string_view>

namespace smla {

void append_hex(std::string& out, char byte);  // \xNN
// Writes control characters, C1 included, as \xNN. Other UTF-8, as in a path, stays.
std::string without_controls(std::string_view raw);

}  // namespace smla
