#include "ops/select/select.h"

namespace smla {

void check_select_outputs(const smla_select_args& args, int64_t tokens, bool f64) {
    SMLA_CHECK(args.relative == 0 || args.relative == 1, "args.relative", args.relative, "0 or 1");
    check_output_rows("args.indices", args.indices, kInt32, {tokens, kAny});
    const int64_t k = args.indices.shape[1];
    SMLA_CHECK(k <= INT32_MAX, "args.indices.shape[1]", k, "at most 2^31 - 1");
    const uint32_t types = f64 ? kFloat32Or64 : dtype_bit(SMLA_F32);
    check_optional_output_rows("args.selected", args.selected, types, {tokens, k});
    check_optional_output("args.counts", args.counts, kInt32, {tokens});
}

void SelectOp::check(const Args& args) {
    check_tensor("args.scores", args.scores, kFloats, {kAny, kAny});
    check_rows("args.scores", args.scores);
    const int64_t tokens = args.scores.shape[0], columns = args.scores.shape[1];
    SMLA_CHECK(columns <= INT32_MAX, "args.scores.shape[1]", columns, "columns that fit in int32");
    check_select_outputs(args, tokens, args.scores.dtype == SMLA_F64);
    if (check_optional("args.ids", args.ids, kInt32, {tokens, columns})) {
        check_rows("args.ids", args.ids);
        SMLA_CHECK(!args.relative, "args.relative", 1, "0 with ids: an id does not count from a window");
    }
    check_optional("args.starts", args.starts, kInt32, {tokens});
    check_optional("args.ends", args.ends, kInt32, {tokens});
}

}  // namespace smla
