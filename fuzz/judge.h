// What can be said of a changed call without asking the library's checks.
#pragma once

#include "ops/field.h"

#include <span>

namespace smla::fuzz {

// Whether every tensor and cache lies within the memory that the problem has for it, and is short. Null
// pointers, negative lengths and unknown formats count as fitting: the library has to refuse them.
bool fits(std::span<const StageField> fields, const void* args);

// Whether what lies elsewhere can be copied: every pointer is null or points into the problem's memory.
bool lies_in_blocks(std::span<const StageField> fields, const void* args);

// Whether every tensor and cache claims to lie on device 0, which is where copies go.
bool on_first_device(std::span<const StageField> fields, const void* args);

// Whether an output lies across another argument. The library allows it where both have gaps that may be the
// other's room, and does not look closer.
bool outputs_overlap(std::span<const StageField> fields, const void* args);

// Whether the table alone refuses the call: a dtype or a rank that is not its field's, two fields that
// disagree on the length of a letter, a field that is missing.
bool contradicts_table(std::span<const StageField> fields, const void* args);

}  // namespace smla::fuzz
