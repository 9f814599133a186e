// Strict JSON for files of unknown origin: no duplicate keys, bounded depth and size, valid UTF-8, nothing
// after the value. Errors are smla::Error with the source's name.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace smla {

using Json = nlohmann::json;

struct JsonLimits {
    size_t depth = 32;
    int64_t values = 1000000;  // values of any kind; bounds the memory (about 64 B each)
};

// nlohmann's destructor allocates memory to walk deep values without recursion, and ends the process if that
// fails. This destructor first empties the values by recursion, whose depth is limited.
class JsonDocument : public Json {
public:
    JsonDocument() = default;
    explicit JsonDocument(Json&& json) : Json(std::move(json)) {}
    JsonDocument(JsonDocument&&) noexcept = default;
    JsonDocument& operator=(JsonDocument&&) = delete;
    ~JsonDocument();
};

// Parses JSON; `source` is the field of an error, e.g. "config.json".
JsonDocument parse_json(std::string_view text, const std::string& source, JsonLimits limits = {});

// Returns `text` with NaN, Infinity and -Infinity in quotes, because Python's json module writes these
// invalid words. Where a number is read, a string is an error; elsewhere it is ignored.
std::string quote_constants(std::string_view text);

bool is_string(const Json& value, std::string_view wanted);

// Returns a value's short text for an error: "12", "\"yarn\"", "a list".
std::string json_text(const Json& value);

}  // namespace smla
