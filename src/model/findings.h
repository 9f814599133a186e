// Everything that is wrong with one file, collected and reported in one error.
#pragma once

#include "core/status.h"

#include <string>
#include <string_view>
#include <vector>

namespace smla {

// Text from a file, fit for an error line: control and non-ASCII bytes as \xNN, long text cut.
std::string printable(std::string_view raw);
std::string in_quotes(std::string_view raw);  // the same between quotes

class Findings {
public:
    explicit Findings(std::string source) : source_(std::move(source)) {}

    void add(std::string field, std::string got, std::string wanted);
    // What reading a part of the file threw, once per field. A status other than SMLA_DATA_ERROR becomes
    // that of the one error.
    void add(const Error& error);
    bool empty() const { return list_.empty(); }
    bool has(const std::string& field) const;
    const std::string& source() const { return source_; }
    // One finding keeps its own field, got and wanted; several are listed in each of the three.
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
