#include "core/visible.h"

#include <cstdio>

namespace smla {

void append_hex(std::string& out, char byte) {
    char hex[8];
    std::snprintf(hex, sizeof hex, "\\x%02x", unsigned(static_cast<unsigned char>(byte)));
    out += hex;
}

std::string without_controls(std::string_view raw) {
    std::string out;
    for (size_t i = 0; i < raw.size(); ++i) {
        const auto at = [&](size_t j) { return j < raw.size() ? static_cast<unsigned char>(raw[j]) : 0u; };
        if (at(i) == 0xc2 && at(i + 1) >= 0x80 && at(i + 1) < 0xa0) {  // U+0080 to U+009F
            append_hex(out, raw[i]);
            append_hex(out, raw[++i]);
        } else if (at(i) < 0x20 || at(i) == 0x7f) {
            append_hex(out, raw[i]);
        } else {
            out += raw[i];
        }
    }
    return out;
}

}  // namespace smla
