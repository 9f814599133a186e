#include "ops/merge/merge.h"

namespace smla {

template <>
std::span<const StageField> fields_of<smla_merge_args>() {
    using namespace fields;
    using Args = smla_merge_args;
    static constexpr StageField table[] = {
        in(SMLA_FIELD(partials), kFloats, "n T H Dv"),
        in(SMLA_FIELD(lse), kFloat32Or64, "n T H").as_double_as(offsetof(Args, partials)),
        in(SMLA_FIELD(sink), kFloat32Or64, "H").optional(),
        out(SMLA_FIELD(out), kFloats, "T H Dv").as_double_as(offsetof(Args, partials)),
        out(SMLA_FIELD(lse_out), kFloat32Or64, "T H").optional().as_double_as(offsetof(Args, partials)),
    };
    return table;
}

void MergeOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.lse_base == SMLA_LSE_LN || args.lse_base == SMLA_LSE_LOG2, "args.lse_base", args.lse_base,
               "ln (0) or log2 (1)");
    check_fields(args, context);
}

}  // namespace smla
