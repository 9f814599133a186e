// How far a finished call is from the same call in double over the same cached bytes.
#pragma once

#include <smla/stages.h>

#include <cstdint>

namespace smla::cli {

// Relative L2 error of `out` of one token, over its first `heads` heads.
double attend_error(const smla_attend_args& args, int64_t token, int64_t heads);
// Relative L2 error of columns [first, first + count) of one token's logits.
double score_error(const smla_score_args& args, int64_t token, int64_t first, int64_t count);
// How much worse than the k-th best score, relative to the deviation of the token's scores, the worst
// selected column is; 0 for a right selection. Infinite for one that is not k distinct columns, ascending.
double selection_error(const smla_score_select_args& args, int64_t token);
// Indices of one token that differ from the specification's.
int64_t wrong_indices(const smla_select_args& args, int64_t token);
double merge_error(const smla_merge_args& args);
double project_error(const smla_project_args& args);

}  // namespace smla::cli
