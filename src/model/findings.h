// Collects everything that is wrong with one file and reports it in one error.
#pragma once

#include "core/status.h"

#include <string>
#include <string_view>
#include <vector>

namespace smla {

// Returns text from a file for an error line: control and non-ASCII bytes as \xNN, long text cut.
std::string printable(std::string_view raw);
std::string in_quotes(std::string_view raw);  // the same between quotes

class Findings {
public:
    explicit Findings(std::string source) : source_(std::move(source)) {}

    void add(std::string field, std::string got, std::string wanted);
    // Adds an error from reading a part of the file, once per field. The final error has this error's status,
    // unless the status is SMLA_DATA_ERROR.
    void add(const Error& error);
    bool empty() const { return list_.empty(); }
    bool has(const std::string& field) const;
    const std::string& source() const { return source_; }
    // Throws the findings as one error; several findings are listed in each of field, got and wanted.
    void throw_if_any() const;

private:
    struct Finding {
        std::string field, got, wanted;
    };
    std::string source_;
    smla_status status_ = SMLA_DATA_ERROR;
    std::vector<Finding> list_;
};

}  // namespace smla
