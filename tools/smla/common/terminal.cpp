#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace smla::cli {

namespace {

constexpr size_t kNarrowest = 20;  // nothing readable fits into less

// Bytes of the longest prefix of `line` that fits into `columns` columns; one character at least.
size_t bytes_within(const std::string& line, size_t columns) {
    size_t at = 0, width = 0, characters = 0;
    while (at < line.size()) {
        size_t next = at + 1;
        if (line[at] == '\033') {
            next = std::min(line.find('m', at), line.size() - 1) + 1;
        } else {
            while (next < line.size() && (line[next] & 0xc0) == 0x80) ++next;
            if (width + 1 > columns && characters > 0) break;
            ++width;
            ++characters;
        }
        at = next;
    }
    return at;
}

// Where to break a line of which the first `room` bytes fit: behind the last space, else within the word.
size_t break_before(const std::string& line, size_t room) {
    const size_t first = line.find_first_not_of(' ');
    const size_t space = line[room] == ' ' ? room : line.rfind(' ', room - 1);
    if (space != std::string::npos && first != std::string::npos && space > first) return space;
    const size_t joint = line.find_last_of("_/,", room - 1);
    if (joint != std::string::npos && joint > first && joint + 1 < line.size()) return joint + 1;
    return room;
}

}  // namespace

size_t terminal_columns(int file) {
    if (!isatty(file)) return kUnlimited;
    const char* named = std::getenv("COLUMNS");
    const long wanted = named ? std::strtol(named, nullptr, 10) : 0;
    winsize size{};
    size_t columns = 80;
    if (wanted > 0) columns = size_t(wanted);
    else if (ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) columns = size.ws_col;
    return std::max(columns, kNarrowest);
}

size_t screen_width(const std::string& line) {
    size_t width = 0;
    for (size_t i = 0; i < line.size(); ++i) {
        if (line[i] == '\033') {
            while (i < line.size() && line[i] != 'm') ++i;
            continue;
        }
        width += (line[i] & 0xc0) != 0x80;
    }
    return width;
}

std::vector<std::string> broken(const std::string& line, size_t columns, const std::string& hanging) {
    std::vector<std::string> out;
    std::string rest = line;
    while (screen_width(rest) > columns) {
        const size_t cut = break_before(rest, bytes_within(rest, columns));
        std::string head = rest.substr(0, cut);
        head.erase(head.find_last_not_of(' ') + 1);
        const size_t next = rest.find_first_not_of(' ', cut);
        out.push_back(std::move(head));
        if (next == std::string::npos) return out;
        rest = hanging + rest.substr(next);
    }
    out.push_back(rest);
    return out;
}

std::string wrapped(const std::string& text, size_t columns) {
    if (columns == kUnlimited) return text;
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        const size_t indent = std::min(line.find_first_not_of(' '), line.size());
        const std::string hanging(std::min(indent + 2, columns / 2), ' ');
        const std::vector<std::string> pieces = broken(line, columns, hanging);
        for (size_t i = 0; i < pieces.size(); ++i) out += (i ? "\n" : "") + pieces[i];
        if (end < text.size()) out += '\n';
        at = end + 1;
    }
    return out;
}

}  // namespace smla::cli
