// Errors of finished calls against the same calls computed in double from the same cached bytes.
#pragma once

#include <smla/stages.h>

#include <cstdint>

namespace smla::cli {

// Relative L2 error of `out` of one token, over its first `heads` heads.
double attend_error(const smla_attend_args& args, int64_t token, int64_t heads);
// Relative L2 error of columns [first, first + count) of one token's logits.
double score_error(const smla_score_args& args, int64_t token, int64_t first, int64_t count);
// Distance of the worst selected score below the k-th best one, in standard deviations of the token's scores;
// 0 for a correct selection. Infinite if the columns are not distinct and ascending.
double selection_error(const smla_score_select_args& args, int64_t token);
// Number of indices of one token that differ from the reference's.
int64_t wrong_indices(const smla_select_args& args, int64_t token);
double merge_error(const smla_merge_args& args);
double project_error(const smla_project_args& args);

}  // namespace smla::cli
