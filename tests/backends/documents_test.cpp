// docs/backends: every path names a file, and the table of names agrees with the registry.
#include "documents.h"

#include "backends/registry.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

namespace smla::test {
namespace {

namespace fs = std::filesystem;

TEST(BackendDocuments, EveryPathIsThere) {
    // Paths stand in backquotes: `src/...`. No std::regex: it does not build under -fsanitize (GCC bug
    // 105562).
    const std::string opening = "`src/";
    int found = 0;
    for (const auto& entry : fs::directory_iterator(kBackendPages)) {
        const std::string document = text_of(entry.path());
        for (size_t at = document.find(opening); at != std::string::npos;
             at = document.find(opening, at + 1)) {
            const std::string named =
                document.substr(at + 1, document.find_first_of(" `", at + 1) - (at + 1));
            EXPECT_TRUE(fs::exists(kRoot / named)) << entry.path().filename() << ": " << named;
            ++found;
        }
    }
    EXPECT_GT(found, 10);
}

// Each backend has a row that begins with its name and ends with its aliases.
TEST(BackendDocuments, TheTableOfNamesHasEveryAlias) {
    std::istringstream document(section(text_of(kBackendPages / "README.md"), "Names by vLLM release"));
    std::vector<std::string> rows;
    for (std::string line; std::getline(document, line);)
        if (!line.empty() && line[0] == '|') rows.push_back(line);
    ASSERT_EQ(rows.size(), all_backends().size() + 2);  // head and ruler
    for (size_t i = 0; i < all_backends().size(); ++i) {
        const Backend& backend = *all_backends()[i];
        std::string aliases;
        for (const char* alias : backend.aliases)
            aliases += (aliases.empty() ? "`" : ", `") + std::string(alias) + "`";
        const std::string& row = rows[i + 2];
        EXPECT_EQ(row.find("| " + std::string(backend.name) + " |"), 0u) << row;
        const std::string last = "| " + (aliases.empty() ? "none" : aliases) + " |";
        ASSERT_GE(row.size(), last.size());
        EXPECT_EQ(row.substr(row.size() - last.size()), last);
    }
}

}  // namespace
}  // namespace smla::test
