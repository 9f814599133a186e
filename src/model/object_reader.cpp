#include "model/object_reader.h"

namespace smla {

const Json* ObjectReader::find(const char* name) const {
    const auto found = object_->find(name);
    return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void ObjectReader::add(const std::string& name, std::string got, std::string wanted) const {
    findings_->add(path(name), std::move(got), std::move(wanted));
}

bool ObjectReader::good(std::initializer_list<const char*> names) const {
    for (const char* name : names)
        if (findings_->has(path(name))) return false;
    return true;
}

namespace {
std::string integer_text(int64_t low, int64_t high) {
    return low == high ? text(low) : text("an integer from ", low, " to ", high);
}
}  // namespace

int64_t ObjectReader::integer_of(const Json& value, const std::string& name, int64_t low,
                                 int64_t high) const {
    const bool fits =
        value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t(INT64_MAX) : value.is_number_integer();
    if (fits) {
        const int64_t number = value.get<int64_t>();
        if (number >= low && number <= high) return number;
    }
    add(name, json_text(value), integer_text(low, high));
    return low;
}

int64_t ObjectReader::integer(const char* name, int64_t low, int64_t high,
                              std::optional<int64_t> fallback) const {
    if (const Json* value = find(name)) return integer_of(*value, name, low, high);
    if (fallback) return *fallback;
    add(name, "absent", integer_text(low, high));
    return low;
}

double ObjectReader::number(const char* name, double low, double high, std::optional<double> fallback) const {
    const Json* value = find(name);
    if (!value && fallback) return *fallback;
    if (value && value->is_number()) {
        const double number = value->get<double>();
        if (number >= low && number <= high) return number;
    }
    add(name, value ? json_text(*value) : "absent", text("a number from ", low, " to ", high));
    return low;
}

bool ObjectReader::boolean(const char* name, bool fallback) const {
    const Json* value = find(name);
    if (!value) return fallback;
    if (value->is_boolean()) return value->get<bool>();
    add(name, json_text(*value), "true or false");
    return fallback;
}

std::optional<std::string> ObjectReader::string(const char* name) const {
    const Json* value = find(name);
    if (!value) return {};
    if (value->is_string()) return value->get<std::string>();
    add(name, json_text(*value), "a string");
    return {};
}

std::optional<ObjectReader> ObjectReader::object(const char* name) const {
    const Json* value = find(name);
    if (!value) return {};
    if (value->is_object()) return ObjectReader(*value, *findings_, path_ + name + ".");
    add(name, json_text(*value), "an object");
    return {};
}

const Json* ObjectReader::list(const char* name) const {
    const Json* value = find(name);
    if (!value || value->is_array()) return value;
    add(name, json_text(*value), "a list");
    return nullptr;
}

}  // namespace smla
