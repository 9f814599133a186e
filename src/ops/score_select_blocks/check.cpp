// score_select_blocks: what it accepts.
#include "ops/score_select_blocks/score_select_blocks.h"
#include "ops/select/select.h"

namespace smla {

template <>
std::span<const StageField> fields_of<smla_score_select_blocks_args>() {
    using namespace fields;
    using Args = smla_score_select_blocks_args;
    static constexpr auto table = scored_fields_and<Args>(std::array{
        in(SMLA_FIELD(blocks), kInt32, "T B").optional(),
        out(SMLA_FIELD(indices), kInt32, "T k").rows(),
        out(SMLA_FIELD(selected), kFloat32Or64, "T k").rows().optional(),
        out(SMLA_FIELD(counts), kInt32, "T").optional(),
        out(SMLA_FIELD(block_maxima), kFloat32Or64, "T NB").rows().as_double_as(offsetof(Args, q)).optional(),
        out(SMLA_FIELD(best_blocks), kInt32, "T KB").rows().optional(),
    });
    return table;
}

void ScoreSelectBlocksOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.columns >= 0, "args.columns", args.columns, "0 or more");
    SMLA_CHECK(args.block_size >= 1, "args.block_size", args.block_size, "1 or more columns");
    check_fields(args, context);
    check_score_rules("args", score_args_of(args));
    check_select_rules("args", select_args_of(args), args.q.dtype == SMLA_F64);
    if (present(args.block_maxima))
        SMLA_CHECK(args.block_maxima.shape[1] == block_count(args), "args.block_maxima.shape[1]",
                   args.block_maxima.shape[1],
                   text(block_count(args), ": the blocks of ", args.columns, " columns"));
    if (present(args.best_blocks))
        SMLA_CHECK(args.best_blocks.shape[1] <= INT32_MAX, "args.best_blocks.shape[1]",
                   args.best_blocks.shape[1], "at most 2^31 - 1");
}

smla_score_args score_args_of(const smla_score_select_blocks_args& args) {
    smla_score_args score{};
    score.q = args.q;
    score.q_scales = args.q_scales;
    score.w = args.w;
    score.keys = args.keys;
    score.block_table = args.block_table;
    score.request_of_token = args.request_of_token;
    score.starts = args.starts;
    score.ends = args.ends;
    return score;
}

smla_select_args select_args_of(const smla_score_select_blocks_args& args) {
    smla_select_args select{};
    select.relative = args.relative;
    select.indices = args.indices;
    select.selected = args.selected;
    select.counts = args.counts;
    return select;
}

int64_t candidate_blocks(const smla_score_select_blocks_args& args, int64_t token, ColumnWindow window,
                         int32_t* out) {
    const int64_t blocks = blocks_in(window, args.block_size);
    int64_t n = 0;
    for (int64_t i = 0; i < args.blocks.shape[1]; ++i) {
        const int64_t block = load_int(args.blocks, token, i);
        if (block >= 0 && block < blocks) out[n++] = int32_t(block);
    }
    if (!std::is_sorted(out, out + n)) std::sort(out, out + n);
    return std::unique(out, out + n) - out;
}

}  // namespace smla
