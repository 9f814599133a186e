#include "table.h"

#include "units.h"

#include <fmt/format.h>

namespace smla::cli {

namespace {

std::string plain(const Document& cell) {
    if (cell.is_string()) return cell.get<std::string>();
    if (cell.is_boolean()) return cell.get<bool>() ? "yes" : "no";
    if (cell.is_number_float()) return number_text(cell.get<double>());
    if (cell.is_array()) {
        std::string out;
        for (const Document& each : cell) out += (out.empty() ? "" : ", ") + plain(each);
        return out;
    }
    return cell.dump();
}

// Columns on the screen: escape sequences take none, a UTF-8 character one.
size_t screen_width(const std::string& text) {
    size_t width = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\033') {
            while (i < text.size() && text[i] != 'm') ++i;
            continue;
        }
        width += (text[i] & 0xc0) != 0x80;
    }
    return width;
}

}  // namespace

void Table::row(std::vector<Document> cells) {
    if (cells.size() != columns_.size())
        fail(SMLA_INTERNAL, "table", smla::text(cells.size(), " cells"), smla::text(columns_.size()));
    rows_.push_back(std::move(cells));
}

Document Table::json() const {
    Document out = Document::array();
    for (const auto& cells : rows_) {
        Document object = Document::object();
        for (size_t c = 0; c < columns_.size(); ++c) object[columns_[c].key] = cells[c];
        out.push_back(std::move(object));
    }
    return out;
}

std::string Table::text(const std::string& indent) const {
    std::vector<std::string> lines(rows_.size() + 1, indent);
    for (size_t c = 0; c < columns_.size(); ++c) {
        const Column& column = columns_[c];
        if (column.title.empty()) continue;
        std::vector<std::string> cells{column.title};
        bool numbers = true;
        size_t width = column.title.size();
        for (const auto& row : rows_) {
            const Document& cell = row[c];
            numbers = numbers && (cell.is_number() || cell.is_null());
            cells.push_back(cell.is_null() ? "-" : column.show ? column.show(cell) : plain(cell));
            width = std::max(width, screen_width(cells.back()));
        }
        for (size_t r = 0; r < cells.size(); ++r) {
            const std::string padding(width - screen_width(cells[r]), ' ');
            if (lines[r].size() > indent.size()) lines[r] += "  ";
            lines[r] += numbers ? padding + cells[r] : cells[r] + padding;
        }
    }
    std::string out;
    for (std::string& line : lines) {
        line.erase(line.find_last_not_of(' ') + 1);
        out += (&line == &lines.front() ? paint(Colour::bold, line) : line) + "\n";
    }
    return out;
}

std::string show_bytes(const Document& cell) { return bytes_text(cell.get<double>()); }
std::string show_count(const Document& cell) { return count_text(cell.get<double>()); }
std::function<std::string(const Document&)> show_fixed(int digits) {
    return [digits](const Document& cell) { return fmt::format("{:.{}f}", cell.get<double>(), digits); };
}

}  // namespace smla::cli
