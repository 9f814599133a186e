// Any text as JSON: either one Error that names it, or a value that is the same again when the tool has
// printed it as --json does, by itself and as cells of a table. And any bytes as what an error names, printed
// likewise.
#include "fuzz.h"
#include "json_mutator.h"

#include "common/table.h"
#include "common/tool.h"
#include "model/json.h"

#include <algorithm>
#include <string_view>

namespace {

using smla::Json;
using smla::cli::Document;
using smla::cli::dump;

// A row for each member of an object or element of a list.
void check_table(const Json& json) {
    smla::cli::Table table({{"key", "key", {}, 1}, {"value", "value", {}}, {"hidden", ""}});
    for (const auto& item : json.items()) {
        const Document value = Document::parse(item.value().dump());
        table.row({item.key(), value, value});
    }
    const smla::JsonDocument read = smla::parse_json(dump(table.json()), "table", {.depth = 64});
    FUZZ_ASSERT(read.size() == json.size() && table.empty() == json.empty());
    auto row = read.begin();
    for (const auto& item : json.items()) {
        FUZZ_ASSERT((*row)["key"] == item.key() && (*row)["value"] == item.value());
        FUZZ_ASSERT((*row)["hidden"] == item.value());
        ++row;
    }
    FUZZ_ASSERT(!table.text().empty());
}

void check_error(const std::string& bytes) {
    const smla::Error error(SMLA_DATA_ERROR, "field", bytes, "wanted");
    const smla::JsonDocument read = smla::parse_json(dump(smla::cli::error_document(error)), "error");
    FUZZ_ASSERT(read["error"]["field"] == "field" && read["error"]["exit_code"] == 2);
    const bool ascii = std::all_of(bytes.begin(), bytes.end(), [](char c) { return (c & 0x80) == 0; });
    FUZZ_ASSERT(!ascii || read["error"]["got"] == error.got);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    return smla::fuzz::mutate_json(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string bytes(reinterpret_cast<const char*>(data), size);
    check_error(bytes);
    try {
        const smla::JsonDocument json = smla::parse_json(bytes, "text");
        const Document printed = Document::parse(json.dump());
        FUZZ_ASSERT(static_cast<const Json&>(smla::parse_json(dump(printed), "printed")) ==
                    static_cast<const Json&>(json));
        if (json.is_structured()) check_table(json);
    } catch (const smla::Error& error) {
        FUZZ_ASSERT(error.status == SMLA_DATA_ERROR && error.field == "text");
        FUZZ_ASSERT(!error.got.empty() && !error.wanted.empty());
    }
    return 0;
}
