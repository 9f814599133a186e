// Table of smla's environment variables, for the checks of their values and docs/environment.md.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

namespace smla {

struct EnvironmentVariable {
    const char* name;
    const char* values;  // valid values; all words of a choice, separated by ", "
    const char* meaning;
    const char* checked;  // time of the check
    enum class Kind { text, choice, number } kind = Kind::text;
    int least = 0, most = 0;  // range of a number
};
std::span<const EnvironmentVariable> environment_variables();

// Returns the value of a variable of the table; null if it is unset or empty.
const char* environment(const char* name);
// Returns the number in a variable of the table; none if it is unset, empty or invalid.
std::optional<int> environment_number(const char* name);
// Throws SMLA_INVALID_ARGUMENT, with the variable as the field, if one has an invalid word or number.
// `unused` lists variables to skip, because an argument of the caller overrides them.
void check_environment(std::initializer_list<std::string_view> unused);

}  // namespace smla
