// What can be said of a changed call without asking the library's checks.
#pragma once

#include "ops/field.h"

#include <span>

namespace smla::fuzz {

// Whether every tensor and cache lies within the memory that the problem has for it, and is short. Null
// pointers, negative lengths and unknown formats do: the library has to refuse them.
bool fits(std::span<const StageField> fields, const void* args);

// Whether the table alone refuses the call: a dtype or a rank that is not its field's, two fields that
// disagree on the length of a letter, a field that is missing.
bool contradicts_table(std::span<const StageField> fields, const void* args);

}  // namespace smla::fuzz
