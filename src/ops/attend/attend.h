// attend: what it means (reference.cpp) and what it accepts. See include/smla/stages_attend.h.
#pragma once

#include "ops/ops.h"

namespace smla {

constexpr int kMaxHeads = 256;

int64_t max_rows_per_token(const smla_attend_args& args);  // K of both lists
double softmax_scale(const smla_attend_args& args);
double query_scale(const smla_attend_args& args);  // 1 unless q is e4m3
double lse_of_no_rows(const smla_attend_args& args);
// The call of inverse_rope that out_positions stand for.
smla_rope_args rotation_of_out(const smla_attend_args& args);
// Whether keys are rounded to bf16: precision `rounded`, and a format with scales.
bool rounds_keys(const smla_attend_args& args, const CacheView& cache);

// Compacts rows[t, 0:length] of one source; returns how many valid rows were written.
int64_t valid_rows(const smla_attend_source& source, const CacheView& cache, int64_t token, int32_t* rows);

}  // namespace smla
