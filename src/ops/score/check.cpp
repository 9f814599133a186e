#include "ops/quant_index_q/quant_index_q.h"
#include "ops/score/score.h"

namespace smla {

void check_score_inputs(const smla_score_args& args) {
    SMLA_CHECK(args.fill == 0 || args.fill == 1, "args.fill", args.fill, "0 or 1");
    check_tensor("args.q", args.q, dtypes(SMLA_F64, SMLA_F32, SMLA_BF16, SMLA_E4M3, SMLA_E2M1),
                 {kAny, kAny, kAny});
    check_rows("args.q", args.q);
    const int64_t tokens = args.q.shape[0], heads = args.q.shape[1], width = args.q.shape[2];
    const bool f64 = args.q.dtype == SMLA_F64;
    SMLA_CHECK(heads >= 1 && heads <= kMaxIndexHeads, "args.q.shape[1]", heads,
               text("1 to ", kMaxIndexHeads, " heads"));
    SMLA_CHECK(width >= 1 && width <= 1024, "args.q.shape[2]", width, "1 to 1024");
    if (args.q.dtype == SMLA_E2M1) {
        SMLA_CHECK(width % kQueryScaleGroup == 0, "args.q.shape[2]", width, "a multiple of 32 for e2m1");
        check_even_strides("args.q", args.q);
        check_tensor("args.q_scales", args.q_scales, dtype_bit(SMLA_E8M0),
                     {tokens, heads, width / kQueryScaleGroup});
        check_rows("args.q_scales", args.q_scales);
    } else {
        SMLA_CHECK(!present(args.q_scales), "args.q_scales", "present",
                   "absent unless q is e2m1: w carries the scale");
    }
    check_tensor("args.w", args.w, f64 ? dtype_bit(SMLA_F64) : dtype_bit(SMLA_F32), {tokens, heads});
    check_cache("args.keys", args.keys, kIndexFormats);
    const CacheView keys(args.keys);
    SMLA_CHECK(keys.width == width, "args.keys.width", keys.width, text("the width of q: ", width));
    SMLA_CHECK(args.keys.format != SMLA_ROW_F64 || f64, "args.keys.format", "row_f64", "f64 q with f64 keys");
    if (check_optional("args.block_table", args.block_table, kInt32, {kAny, kAny}))
        check_tensor("args.request_of_token", args.request_of_token, kInt32, {tokens});
    else
        SMLA_CHECK(!present(args.request_of_token), "args.request_of_token", "present",
                   "absent without a block_table");
    check_optional("args.starts", args.starts, kInt32, {tokens});
    check_tensor("args.ends", args.ends, kInt32, {tokens});
}

void ScoreOp::check(const Args& args) {
    check_score_inputs(args);
    const uint32_t types = args.q.dtype == SMLA_F64 ? dtype_bit(SMLA_F64) : dtype_bit(SMLA_F32);
    check_output_rows("args.logits", args.logits, types, {args.q.shape[0], kAny});
    SMLA_CHECK(args.logits.shape[1] <= INT32_MAX, "args.logits.shape[1]", args.logits.shape[1],
               "columns that fit in int32");
}

}  // namespace smla
