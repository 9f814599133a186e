#include "ops/quant_index_q/quant_index_q.h"
#include "ops/score/score.h"

namespace smla {

template <>
std::span<const StageField> fields_of<smla_score_args>() {
    return kScoreFields;
}

void check_score_rules(const char* prefix, const smla_score_args& args) {
    const auto field = [&](const char* name) { return text(prefix, name); };
    SMLA_CHECK(args.fill == 0 || args.fill == 1, field(".fill"), args.fill, "0 or 1");
    SMLA_CHECK(args.precision >= 0 && args.precision <= SMLA_PRECISION_ROUNDED, field(".precision"),
               args.precision, "default (0), exact (1) or rounded (2)");
    SMLA_CHECK(args.reserved == 0, field(".reserved"), args.reserved, "0");
    const int64_t heads = args.q.shape[1], width = args.q.shape[2];
    const bool f64 = args.q.dtype == SMLA_F64;
    SMLA_CHECK(heads >= 1 && heads <= kMaxIndexHeads, field(".q.shape[1]"), heads,
               text("1 to ", kMaxIndexHeads, " heads"));
    SMLA_CHECK(width >= 1 && width <= 1024, field(".q.shape[2]"), width, "1 to 1024");
    if (args.q.dtype == SMLA_E2M1) {
        SMLA_CHECK(width % kQueryScaleGroup == 0, field(".q.shape[2]"), width, "a multiple of 32 for e2m1");
        check_even_strides(field(".q").c_str(), args.q);
    }
    const CacheView keys(args.keys);
    SMLA_CHECK(keys.width == width, field(".keys.width"), keys.width, text("the width of q: ", width));
    SMLA_CHECK(args.keys.format != SMLA_ROW_F64 || f64, field(".keys.format"), "row_f64",
               "f64 q with f64 keys");
}

void ScoreOp::check(const Args& args, const CheckContext& context) {
    check_fields(args, context);
    check_score_rules("args", args);
    SMLA_CHECK(args.logits.shape[1] <= INT32_MAX, "args.logits.shape[1]", args.logits.shape[1],
               "columns that fit in int32");
}

}  // namespace smla
