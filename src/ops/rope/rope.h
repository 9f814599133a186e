// rope: what it means (reference.cpp) and what it accepts. See include/smla/stages_linear.h.
#pragma once

#include "ops/ops.h"

namespace smla {

// Rules of a rotation of channels [first, first + 2n) of a row; frequencies may be absent. `first`: the
// field's name.
void check_rope_style(const char* field, smla_rope_style style);
void check_rotation(const char* field, int64_t first, const Tensor& frequencies, int64_t width);

}  // namespace smla
