// A table: aligned text for people, a list of objects for --json, from the same cells. On a terminal the text
// is fitted to its width: less important columns are left out, and long cells are broken into lines.
#pragma once

#include "tool.h"

#include <functional>
#include <string>
#include <vector>

namespace smla::cli {

using Show = std::function<std::string(const Document&)>;
constexpr int kEssential = 9;

struct Column {
    std::string key;              // in JSON
    std::string title;            // in text; empty: only in JSON
    Show show = {};               // text of a cell; empty: by its type
    int importance = kEssential;  // on a narrow terminal the smallest are left out first; kEssential: never
};

class Table {
public:
    explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

    void row(std::vector<Document> cells);
    bool empty() const { return rows_.empty(); }
    Document json() const;
    // Columns of numbers are right-aligned; a null is shown as "-".
    std::string text() const;

private:
    struct Shown {  // a column of the text
        const Column* column;
        std::vector<std::string> cells;  // the title first
        bool numbers;
        size_t width;
        size_t least() const;  // other columns are left out before this one gets narrower
    };
    std::vector<Shown> shown() const;
    static std::string fit(std::vector<Shown>& columns, size_t room);

    std::vector<Column> columns_;
    std::vector<std::vector<Document>> rows_;
};

// For Column::show.
std::string show_bytes(const Document& cell);
std::string show_count(const Document& cell);
Show show_fixed(int digits);  // digits after the point

}  // namespace smla::cli
