// Typed members of a JSON object. Errors go to Findings, and a harmless value is returned. null means absent.
#pragma once

#include "model/findings.h"
#include "model/json.h"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace smla {

class ObjectReader {
public:
    // `path` precedes member names in findings: "rope_scaling."
    ObjectReader(const Json& object, Findings& findings, std::string path = "")
        : object_(&object), findings_(&findings), path_(std::move(path)) {}

    const Json* find(const char* name) const;  // null: absent
    bool has(const char* name) const { return find(name) != nullptr; }
    std::string path(const std::string& name) const { return path_ + name; }
    void add(const std::string& name, std::string got, std::string wanted) const;
    // Returns whether none of these members has been reported. Rules between members check this first, so
    // that one error is reported once.
    bool good(std::initializer_list<const char*> names) const;

    // Returns a required member, or an optional one if `fallback` has a value. Reports a wrong value and
    // returns `low`.
    int64_t integer(const char* name, int64_t low, int64_t high, std::optional<int64_t> fallback = {}) const;
    double number(const char* name, double low, double high, std::optional<double> fallback = {}) const;
    bool boolean(const char* name, bool fallback) const;
    std::optional<std::string> string(const char* name) const;
    std::optional<ObjectReader> object(const char* name) const;  // an optional object
    const Json* list(const char* name) const;                    // an optional list

    // Checks and returns a value that is not itself a member, e.g. an element of a list.
    int64_t integer_of(const Json& value, const std::string& name, int64_t low, int64_t high) const;

private:
    const Json* object_;
    Findings* findings_;
    std::string path_;
};

}  // namespace smla
