#include "ops/merge/merge.h"

namespace smla {

void MergeOp::check(const Args& args) {
    SMLA_CHECK(args.lse_base == SMLA_LSE_LN || args.lse_base == SMLA_LSE_LOG2, "args.lse_base", args.lse_base,
               "ln (0) or log2 (1)");
    check_tensor("args.partials", args.partials, kFloats, {kAny, kAny, kAny, kAny});
    const int64_t parts = args.partials.shape[0], tokens = args.partials.shape[1],
                  heads = args.partials.shape[2], width = args.partials.shape[3];
    const bool f64 = args.partials.dtype == SMLA_F64;
    const uint32_t stat_types = f64 ? dtype_bit(SMLA_F64) : dtype_bit(SMLA_F32);
    const uint32_t out_types = f64 ? dtype_bit(SMLA_F64) : dtypes(SMLA_F32, SMLA_BF16, SMLA_F16);
    check_tensor("args.lse", args.lse, stat_types, {parts, tokens, heads});
    check_optional("args.sink", args.sink, kFloat32Or64, {heads});
    check_output("args.out", args.out, out_types, {tokens, heads, width});
    check_optional_output("args.lse_out", args.lse_out, stat_types, {tokens, heads});
}

}  // namespace smla
