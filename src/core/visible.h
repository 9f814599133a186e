// Bytes of unknown origin in text for people.
#pragma once

#include <string>
#include <string_view>

namespace smla {

void append_hex(std::string& out, char byte);  // \xNN
// Control characters, those of C1 too, as \xNN; other UTF-8, in a path, stays.
std::string without_controls(std::string_view raw);

}  // namespace smla
