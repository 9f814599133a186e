// docs/backends: the section of each backend has a table with every name of its original, no empty cell, and
// only tests that exist.
#include "documents.h"
#include "support.h"
#include "table_names.h"

#include <regex>
#include <sstream>

namespace smla::test {
namespace {

namespace fs = std::filesystem;

std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
    return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// Rows of a document's tables, without heads and rulers.
std::vector<std::vector<std::string>> rows_of(const std::string& document) {
    std::vector<std::vector<std::string>> out;
    std::istringstream lines(document);
    int in_table = 0;
    for (std::string line; std::getline(lines, line);) {
        if (line.empty() || line[0] != '|') {
            in_table = 0;
            continue;
        }
        if (++in_table <= 2) continue;
        std::vector<std::string> cells;
        std::istringstream parts(line.substr(1, line.rfind('|') - 1) + "|");
        for (std::string cell; std::getline(parts, cell, '|');) cells.push_back(trimmed(cell));
        out.push_back(cells);
    }
    return out;
}

// Problems of a table's cells: what a table must not have.
std::vector<std::string> faults(const std::vector<std::vector<std::string>>& rows, size_t columns,
                                const std::string& tests) {
    std::vector<std::string> out;
    for (const auto& row : rows) {
        const std::string label = row.empty() ? "" : row[0];
        if (row.size() != columns)
            out.push_back("row '" + label + "' has " + std::to_string(row.size()) + " cells");
        for (const std::string& cell : row)
            if (cell.empty()) out.push_back("row '" + label + "' has an empty cell");
        const std::regex name("`([A-Z][A-Za-z0-9]+)\\.([A-Za-z0-9_]+)`");
        const std::string& last = row.back();
        bool reason = last.find("absent") != std::string::npos ||
                      last.find("no such device") != std::string::npos ||
                      last.find("golden files") != std::string::npos;
        for (std::sregex_iterator found(last.begin(), last.end(), name), end; found != end; ++found) {
            reason = true;
            const std::string suite = (*found)[1].str(), test = (*found)[2].str() + ")";
            // those of the contract are written once for processors and GPUs (tests/contract/engines.h)
            const bool twice =
                suite == "Contract" && tests.find("CONTRACT_TEST(" + test) != std::string::npos;
            if (!twice && tests.find("(" + suite + ", " + test) == std::string::npos)
                out.push_back("row '" + label + "' names a test that is not there: " + found->str());
        }
        if (!reason) out.push_back("row '" + label + "' has neither a test nor a reason");
    }
    return out;
}

std::string all_tests() {
    std::string out;
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests"))
        if (entry.path().extension() == ".cpp") out += text_of(entry.path());
    return out;
}

TEST(BackendTables, EveryNameHasARowAndEveryRowIsFull) {
    const std::string tests = all_tests();
    const std::string pages = text_of(kBackendPages / "latent.md") + text_of(kBackendPages / "hybrid.md");
    for (const auto& [backend, names] : kNames) {
        SCOPED_TRACE(backend);
        const auto rows = rows_of(section(pages, backend));
        EXPECT_EQ(faults(rows, 3, tests), std::vector<std::string>());
        std::string subjects;
        for (const auto& row : rows) subjects += row[0] + "\n";
        for (const std::string& name : names) EXPECT_NE(subjects.find(name), std::string::npos) << name;
    }
    const char* const* names = nullptr;
    int32_t count = 0;
    ASSERT_EQ(smla_backend_list(&names, &count), SMLA_OK);
    for (int32_t i = 0; i < count; ++i) EXPECT_TRUE(kNames.count(names[i])) << names[i];
}

TEST(BackendTables, EveryTrapHasARow) {
    const std::string page = text_of(kBackendPages / "README.md");
    const auto rows = rows_of(section(page, "Traps of the published backends"));
    EXPECT_EQ(faults(rows, 4, all_tests()), std::vector<std::string>());
    ASSERT_EQ(rows.size(), 46u);
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i][0], std::to_string(i + 1));
}

TEST(BackendTables, AFaultIsSeen) {
    const std::string tests = "TEST(Suite, Name) {}";
    const std::string head = "| a | b | c |\n|---|---|---|\n";
    const auto problems = [&](const std::string& row) {
        return faults(rows_of(head + row + "\n"), 3, tests).size();
    };
    EXPECT_EQ(problems("| x | y | `Suite.Name` |"), 0u);
    EXPECT_EQ(problems("| x | none | absent: unused |"), 0u);
    EXPECT_EQ(problems("| x |  | `Suite.Name` |"), 1u);
    EXPECT_EQ(problems("| x | y | `Suite.Other` |"), 1u);
    EXPECT_EQ(problems("| x | y | see there |"), 1u);
    EXPECT_EQ(problems("| x | `Suite.Name` |"), 1u);
}

}  // namespace
}  // namespace smla::test
