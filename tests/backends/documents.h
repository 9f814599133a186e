// Text of files in the source tree and sections of Markdown documents.
#pragma once

#include <gtest/gtest.h>
#include <source_dir.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace smla::test {

inline const std::filesystem::path kRoot = SMLA_SOURCE_DIR;
inline const std::filesystem::path kBackendPages = kRoot / "docs" / "backends";

inline std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    std::stringstream out;
    out << file.rdbuf();
    return out.str();
}

// Returns the text of a document from the heading `## title` to the next heading of that level.
inline std::string section(const std::string& document, const std::string& title) {
    const size_t begin = document.find("\n## " + title + "\n");
    EXPECT_NE(begin, std::string::npos) << title;
    if (begin == std::string::npos) return "";
    return document.substr(begin, document.find("\n## ", begin + 1) - begin);
}

}  // namespace smla::test
