// Faults and oddities that a caller may put into the arguments of any stage. The stage's table of fields says
// what there is to change: a new stage or field is changed without a line here.
#pragma once

#include "choices.h"

#include "kit/hostile_memory.h"
#include "ops/field.h"

#include <span>

namespace smla::fuzz {

// What is still true of a call after a change.
struct Changed {
    // The kit's bounds hold: values are as mild as the problem drew them, or NaN.
    bool comparable = true;
    // Short enough to be run where it is accepted.
    bool runnable = true;
};

// One element or one record becomes an index of any kind or NaN. Of a call that no change() has touched yet.
void spoil_contents(std::span<const StageField> fields, const void* args, Choices& choose);
// One field, one number or one pointer becomes another. `memory`: the call's, for what grows.
Changed change(std::span<const StageField> fields, void* args, size_t bytes, kit::HostileMemory& memory,
               Choices& choose);

}  // namespace smla::fuzz
