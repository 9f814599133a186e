// Checks and specification of rope.
#pragma once

#include "ops/ops.h"

namespace smla {

// Check a rotation of channels [first, first + 2n) of a row; frequencies may be absent. `field` names the
// checked value in errors.
void check_rope_style(const char* field, smla_rope_style style);
void check_rotation(const char* field, int64_t first, const Tensor& frequencies, int64_t width);

}  // namespace smla
