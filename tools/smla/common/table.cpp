#include "table.h"

#include "terminal.h"
#include "units.h"

#include <fmt/format.h>
#include <unistd.h>

namespace smla::cli {

namespace {

std::string plain(const Document& cell) {
    if (cell.is_string()) return cell.get<std::string>();
    if (cell.is_boolean()) return cell.get<bool>() ? "yes" : "no";
    if (cell.is_number_float()) return number_text(cell.get<double>());
    if (cell.is_array()) {
        std::string out;
        if (cell.empty()) return "-";
        for (const Document& each : cell) out += (out.empty() ? "" : ", ") + plain(each);
        return out;
    }
    return cell.dump();
}

constexpr size_t kGap = 2;  // between columns
constexpr size_t kLongText =
    36;  // a text column that is wider than this is broken before others are left out
constexpr size_t kNarrowText = 4;  // no text column gets narrower

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

std::vector<Table::Shown> Table::shown() const {
    std::vector<Shown> out;
    for (size_t c = 0; c < columns_.size(); ++c) {
        const Column& column = columns_[c];
        if (column.title.empty()) continue;
        Shown each{&column, {column.title}, true, screen_width(column.title)};
        for (const auto& row : rows_) {
            const Document& cell = row[c];
            each.numbers = each.numbers && (cell.is_number() || cell.is_null());
            each.cells.push_back(cell.is_null() ? "-" : column.show ? column.show(cell) : plain(cell));
            each.width = std::max(each.width, screen_width(each.cells.back()));
        }
        out.push_back(std::move(each));
    }
    return out;
}

size_t Table::Shown::least() const {
    return numbers ? width : std::min(width, std::max(kLongText, screen_width(cells.front())));
}

// Leaves out columns and narrows others until they fit into `room`; returns the titles left out.
std::string Table::fit(std::vector<Shown>& columns, size_t room) {
    const auto total = [&](const auto& width_of) {
        size_t sum = 0;
        for (const Shown& each : columns) sum += width_of(each) + (sum ? kGap : 0);
        return sum;
    };
    std::string left_out;
    while (total([](const Shown& each) { return each.least(); }) > room) {
        size_t least = columns.size();
        for (size_t c = 0; c < columns.size(); ++c)
            if (columns[c].column->importance < kEssential &&
                (least == columns.size() ||
                 columns[c].column->importance <= columns[least].column->importance))
                least = c;
        if (least == columns.size()) break;
        left_out += (left_out.empty() ? "" : ", ") + columns[least].column->title;
        columns.erase(columns.begin() + int64_t(least));
    }
    while (total([](const Shown& each) { return each.width; }) > room) {
        Shown* widest = nullptr;
        for (Shown& each : columns)
            if (!each.numbers && each.width > kNarrowText && (!widest || each.width > widest->width))
                widest = &each;
        if (!widest) break;
        widest->width -= 1;
    }
    return left_out;
}

std::string Table::text() const {
    const size_t room = terminal_columns(STDOUT_FILENO);
    std::vector<Shown> columns = shown();
    const std::string left_out = fit(columns, room);
    std::string out;
    for (size_t r = 0; r <= rows_.size(); ++r) {
        std::vector<std::vector<std::string>> cells;  // by column, the lines of each
        size_t height = 1;
        for (const Shown& each : columns) {
            cells.push_back(broken(each.cells[r], each.width));
            height = std::max(height, cells.back().size());
        }
        for (size_t l = 0; l < height; ++l) {
            std::string line;
            for (size_t c = 0; c < columns.size(); ++c) {
                const std::string piece = l < cells[c].size() ? cells[c][l] : "";
                const std::string padding(columns[c].width - screen_width(piece), ' ');
                line += (c ? std::string(kGap, ' ') : "") +
                        (columns[c].numbers ? padding + piece : piece + padding);
            }
            line.erase(line.find_last_not_of(' ') + 1);
            out += (r == 0 ? paint(Colour::bold, line) : line) + "\n";
        }
    }
    if (!left_out.empty())
        out += paint(Colour::dim, "(left out of " + smla::text(room) + " columns: " + left_out + ")") + "\n";
    return out;
}

std::string show_bytes(const Document& cell) { return bytes_text(cell.get<double>()); }
std::string show_count(const Document& cell) { return count_text(cell.get<double>()); }
Show show_fixed(int digits) {
    return [digits](const Document& cell) { return fmt::format("{:.{}f}", cell.get<double>(), digits); };
}

}  // namespace smla::cli
