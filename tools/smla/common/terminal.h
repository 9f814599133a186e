// Text on a terminal: how wide it is, how wide text is on it, text broken into lines that fit.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace smla::cli {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// Columns of the terminal behind a file descriptor: COLUMNS of the environment, else what the terminal says,
// else 80. kUnlimited if it is no terminal.
size_t terminal_columns(int file);

// Columns that one line takes: an escape sequence none, a UTF-8 character one.
size_t screen_width(const std::string& line);

// One line broken at spaces, or within a word that is too long, best behind one of "_/,". The lines after
// the first begin with `hanging`.
std::vector<std::string> broken(const std::string& line, size_t columns, const std::string& hanging = "");

// Breaks every line of `text` that is wider than `columns`. The pieces after the first are indented by two
// more columns than the line.
std::string wrapped(const std::string& text, size_t columns);

}  // namespace smla::cli
