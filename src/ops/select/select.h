// Checks and specification of select.
#pragma once

#include "ops/map/row_of.h"
#include "ops/ops.h"

namespace smla {

// Fields of select, which are also fields of score_select's member `select`.
constexpr std::array<StageField, 10> kSelectFields = [] {
    using namespace fields;
    using Args = smla_select_args;
    return std::array<StageField, 10>{
        in(SMLA_FIELD(scores), kFloats, "T N").rows(),
        out(SMLA_FIELD(indices), kInt32, "T k").rows(),
        out(SMLA_FIELD(selected), kFloat32Or64, "T k").rows().optional(),
        out(SMLA_FIELD(counts), kInt32, "T").optional(),
        in(SMLA_FIELD(ids), kInt32, "T N").rows().optional(),
        in(SMLA_FIELD(starts), kInt32, "T").optional(),
        in(SMLA_FIELD(ends), kInt32, "T").optional(),
        out(SMLA_FIELD(rows), kInt32, "T k").rows().optional(),
        in(SMLA_FIELD(row_table), kInt32, "RC MC").exactly_if(offsetof(Args, rows)),
        in(SMLA_FIELD(request_of_token), kInt32, "T").exactly_if(offsetof(Args, rows)),
    };
}();
// Checks the rules between fields that score_select also has. `prefix`: "args" or "args.select".
void check_select_rules(const char* prefix, const smla_select_args& args, bool f64);

// Returns the table that maps selected columns to rows; without requests if no rows are requested.
BlockTable row_table_of(const smla_select_args& args);

// Writes row t of the outputs: `count` winners, ascending, minus `base`, then -1 and -inf.
template <class Real>
void store_selection(const smla_select_args& args, int64_t t, const int32_t* winners, const Real* scores,
                     int64_t count, int64_t base);

}  // namespace smla
