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
    unsigned before = 0;
    for (const char c : raw) {
        const unsigned byte = static_cast<unsigned char>(c);
        const bool c1 = before == 0xc2 && byte >= 0x80 && byte < 0xa0;
        if (byte < 0x20 || byte == 0x7f || c1) append_hex(out, c);
        else out += c;
        before = byte;
    }
    return out;
}

}  // namespace smla
