// A table: aligned text for people, a list of objects for --json, from the same cells.
#pragma once

#include "tool.h"

#include <functional>
#include <string>
#include <vector>

namespace smla::cli {

struct Column {
    std::string key;                                        // in JSON
    std::string title;                                      // in text; empty: only in JSON
    std::function<std::string(const Document&)> show = {};  // text of a cell; empty: by its type
};

class Table {
public:
    explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

    void row(std::vector<Document> cells);
    bool empty() const { return rows_.empty(); }
    Document json() const;
    // Columns of numbers are right-aligned; a null is shown as "-".
    std::string text(const std::string& indent = "") const;

private:
    std::vector<Column> columns_;
    std::vector<std::vector<Document>> rows_;
};

// For Column::show.
std::string show_bytes(const Document& cell);
std::string show_count(const Document& cell);
std::function<std::string(const Document&)> show_fixed(int digits);  // digits after the point

}  // namespace smla::cli
