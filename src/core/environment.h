// The environment variables of smla: one table, from which values are checked and documents are made.
#pragma once

#include <optional>
#include <span>

namespace smla {

struct EnvironmentVariable {
    const char* name;
    const char* values;  // what is accepted; a choice: all words, separated by ", "
    const char* meaning;
    const char* checked;  // who checks a value, and when
    enum class Kind { text, choice, number } kind = Kind::text;
    int least = 0, most = 0;  // of a number
};
std::span<const EnvironmentVariable> environment_variables();

// The value of a variable of the table; null if it is unset or empty.
const char* environment(const char* name);
// The number that a variable of the table holds; none if it is unset, empty or not accepted.
std::optional<int> environment_number(const char* name);
// Throws SMLA_INVALID_ARGUMENT, with the variable as the field, if one holds a word or number that is not
// accepted.
void check_environment();

}  // namespace smla
