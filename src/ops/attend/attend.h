// Checks and specification of attend.
#pragma once

#include "ops/ops.h"

namespace smla {

constexpr int kMaxHeads = 256;

int64_t max_rows_per_token(const smla_attend_args& args);  // K of both lists
double softmax_scale(const smla_attend_args& args);
double query_scale(const smla_attend_args& args);  // 1 unless q is e4m3
double lse_of_no_rows(const smla_attend_args& args);
// Returns the inverse_rope call that out_positions request.
smla_rope_args rotation_of_out(const smla_attend_args& args);
// Returns whether keys are rounded to bf16: precision `rounded`, and a format with scales.
bool rounds_keys(const smla_attend_args& args, const CacheView& cache);

// Compacts rows[t, 0:length] of one source and returns the number of valid rows.
int64_t valid_rows(const smla_attend_source& source, const CacheView& cache, int64_t token, int32_t* rows);

}  // namespace smla
