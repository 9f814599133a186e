#include "ops/gather/gather.h"

namespace smla {

template <>
std::span<const StageField> fields_of<smla_gather_args>() {
    using namespace fields;
    using Args = smla_gather_args;
    static constexpr StageField table[] = {
        cache(SMLA_FIELD(cache), kKvFormats | kIndexFormats, "D"),
        in(SMLA_FIELD(block_table), kInt32, "R MB"),
        in(SMLA_FIELD(starts), kInt32, "R").optional(),
        in(SMLA_FIELD(cu), kInt32, "R+1"),
        out(SMLA_FIELD(out), kFloats | dtype_bit(SMLA_E4M3), "N D"),
        out(SMLA_FIELD(scales), dtype_bit(SMLA_F32), "N").exactly_if(offsetof(Args, out), SMLA_E4M3),
    };
    return table;
}

void GatherOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.raw == 0 || args.raw == 1, "args.raw", args.raw, "0 or 1");
    if (args.raw) {
        check_format("args.cache", args.cache, formats(SMLA_INDEX_FP8_132));
        // First, so that the error names this dimension and not an outer one.
        if (args.out.ndim == 2) check_rows("args.out", args.out);
    }
    if (present(args.out)) check_dtype("args.out", args.out, args.raw ? dtype_bit(SMLA_E4M3) : kFloats);
    check_fields(args, context);
}

}  // namespace smla
