// attend: what it means (reference.cpp) and what it accepts. See include/smla/stages_attend.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_attend.h>
#include <smla/stages_linear.h>

namespace smla {

constexpr int kMaxHeads = 256;

struct AttendOp {
    using Args = smla_attend_args;
    static void check(const Args& args, const CheckContext& context = {});
    static int64_t tasks(const Args& args) { return args.q.shape[0]; }  // tokens
    static void reference(const Args& args, int64_t begin, int64_t end);
};

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
