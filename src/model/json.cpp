#include "model/json.h"

#include "model/findings.h"

#include <vector>

namespace smla {

namespace {

// Builds the value itself, because nlohmann's builder silently keeps the last of duplicate keys, and its
// callback parser searches the parent at every closing brace: hours for a header of a million tensors.
class Builder final : public nlohmann::json_sax<Json> {
public:
    Builder(const std::string& source, JsonLimits limits) : source_(source), limits_(limits) {}

    JsonDocument result;

    bool null() override { return put(nullptr); }
    bool boolean(bool value) override { return put(value); }
    bool number_integer(number_integer_t value) override { return put(value); }
    bool number_unsigned(number_unsigned_t value) override { return put(value); }
    bool number_float(number_float_t value, const string_t&) override { return put(value); }
    bool string(string_t& value) override { return put(std::move(value)); }
    bool binary(binary_t&) override { return false; }  // JSON text has none
    bool start_object(std::size_t) override { return open(Json::value_t::object); }
    bool start_array(std::size_t) override { return open(Json::value_t::array); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }

    bool key(string_t& name) override {
        const auto placed = open_.back()->get_ptr<Json::object_t*>()->emplace(std::move(name), nullptr);
        if (!placed.second)
            fail(SMLA_DATA_ERROR, source_, text("a duplicate key ", in_quotes(placed.first->first)),
                 "unique keys in each object");
        member_ = &placed.first->second;
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
        // ids: 101 syntax, 102-115 encoding, 406 number out of range
        fail(SMLA_DATA_ERROR, source_, text("an error at byte ", position, " (", reason(error.what()), ")"),
             "valid JSON");
    }

private:
    static std::string reason(
        const std::string& what) {  // "[json.exception.parse_error.101] parse error at ...: reason"
        const size_t bracket = what.find("] ");
        return printable(bracket == std::string::npos ? what : what.substr(bracket + 2));
    }

    Json* place(Json value) {
        if (++values_ > limits_.values)
            fail(SMLA_DATA_ERROR, source_, text("more than ", limits_.values, " values"),
                 text("at most ", limits_.values));
        Json* at = &result;
        if (!open_.empty()) {
            if (open_.back()->is_array()) {
                open_.back()->get_ptr<Json::array_t*>()->push_back(nullptr);
                at = &open_.back()->get_ptr<Json::array_t*>()->back();
            } else {
                at = member_;
            }
        }
        *at = std::move(value);
        return at;
    }
    bool put(Json value) {
        place(std::move(value));
        return true;
    }
    bool open(Json::value_t kind) {
        if (open_.size() >= limits_.depth)
            fail(SMLA_DATA_ERROR, source_, text("values nested more than ", limits_.depth, " deep"),
                 text("a nesting depth of at most ", limits_.depth));
        open_.push_back(place(Json(kind)));  // stays valid: its parent grows only after it is closed
        return true;
    }
    bool close() {
        open_.pop_back();
        return true;
    }

    const std::string& source_;
    JsonLimits limits_;
    int64_t values_ = 0;
    std::vector<Json*> open_;
    Json* member_ = nullptr;
};

// Empties all lists and objects: nlohmann's destructor allocates nothing for empty ones.
void take_apart(Json& value) {
    if (auto* const list = value.get_ptr<Json::array_t*>()) {
        for (Json& each : *list) take_apart(each);
        list->clear();
    } else if (auto* const object = value.get_ptr<Json::object_t*>()) {
        for (auto& each : *object) take_apart(each.second);
        object->clear();
    }
}

}  // namespace

JsonDocument::~JsonDocument() { take_apart(*this); }

JsonDocument parse_json(std::string_view text, const std::string& source, JsonLimits limits) {
    // nlohmann ends its input at a NUL byte and ignores what follows
    const size_t nul = text.find('\0');
    if (nul != text.npos)
        fail(SMLA_DATA_ERROR, source, smla::text("a NUL character at byte ", nul), "valid JSON");
    Builder builder(source, limits);
    Json::sax_parse(text.begin(), text.end(), &builder);
    return std::move(builder.result);
}

std::string quote_constants(std::string_view text) {
    std::string out;
    bool in_string = false;
    while (!text.empty()) {
        size_t length = in_string && text[0] == '\\' ? 2 : 1;  // an escaped quote does not end the string
        if (text[0] == '"') in_string = !in_string;
        for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
            if (!in_string && text.starts_with(word)) length = word.size();
        const std::string_view token = text.substr(0, length);
        const bool constant = !in_string && length > 1;
        out.append(constant ? "\"" : "").append(token).append(constant ? "\"" : "");
        text.remove_prefix(token.size());
    }
    return out;
}

bool is_string(const Json& value, std::string_view wanted) {
    const std::string* string = value.get_ptr<const std::string*>();
    return string && *string == wanted;
}

std::string json_text(const Json& value) {
    if (value.is_array()) return text("a list of ", value.size());
    if (value.is_object()) return "an object";
    if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
    return value.dump();
}

}  // namespace smla
