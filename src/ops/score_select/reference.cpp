// Checks and specification of score_select: score, then select, for each token.
#include "ops/score_select/score_select.h"

#include "ops/score/score.h"
#include "ops/select/select.h"

#include <vector>

namespace smla {

template <>
std::span<const StageField> fields_of<smla_score_select_args>() {
    // Fields of both stages, without the logits, scores and windows between them.
    static constexpr auto table = [] {
        using Args = smla_score_select_args;
        std::array<StageField, kScoreFields.size() + kSelectFields.size()> all{};
        size_t n = 0;
        for (const StageField& field : kScoreFields) all[n++] = field.inside("score.", offsetof(Args, score));
        for (const StageField& field : kSelectFields)
            all[n++] = field.inside("select.", offsetof(Args, select));
        for (StageField& field : all) {
            const std::string_view name = field.name.member();
            if (name == "score.logits" || name == "select.scores" || name == "select.request_of_token")
                field = field.optional(), field.follows = kNoField;
        }
        return all;
    }();
    return table;
}

void ScoreSelectOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.columns >= 0, "args.columns", args.columns, "0 or more");
    SMLA_CHECK(!present(args.score.logits), "args.score.logits", "present",
               "absent (the call does not store all logits)");
    const struct {
        const char* field;
        const Tensor& tensor;
    } absent[] = {{"args.select.scores", args.select.scores},
                  {"args.select.ids", args.select.ids},
                  {"args.select.starts", args.select.starts},
                  {"args.select.ends", args.select.ends},
                  {"args.select.request_of_token", args.select.request_of_token}};
    for (const auto& each : absent)
        SMLA_CHECK(!present(each.tensor), each.field, "present",
                   "absent (args.score contains scores, windows and requests)");
    check_fields(args, context);
    SMLA_CHECK(!present(args.select.rows) || present(args.score.request_of_token), "args.select.rows",
               "present", "absent without args.score.request_of_token");
    check_score_rules("args.score", args.score);
    check_select_rules("args.select", args.select, args.score.q.dtype == SMLA_F64);
}

namespace {
Tensor tokens_of(const Tensor& tensor, int64_t begin, int64_t end) {
    return present(tensor) ? slice(tensor, 0, begin, end) : tensor;
}
}  // namespace

smla_score_args score_part(const smla_score_select_args& args, int64_t begin, int64_t end,
                           const Tensor& logits) {
    smla_score_args score = args.score;
    score.fill = 0;
    for (Tensor* tensor :
         {&score.q, &score.q_scales, &score.w, &score.request_of_token, &score.starts, &score.ends})
        *tensor = tokens_of(*tensor, begin, end);
    score.logits = logits;
    return score;
}

smla_select_args select_part(const smla_score_select_args& args, int64_t begin, int64_t end,
                             const Tensor& logits) {
    smla_select_args select = args.select;
    for (Tensor* tensor : {&select.indices, &select.selected, &select.counts, &select.rows})
        *tensor = tokens_of(*tensor, begin, end);
    if (present(select.rows)) select.request_of_token = tokens_of(args.score.request_of_token, begin, end);
    select.scores = logits;
    select.starts = tokens_of(args.score.starts, begin, end);
    select.ends = tokens_of(args.score.ends, begin, end);
    return select;
}

void ScoreSelectOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (begin == end) return;
    const smla_dtype dtype = args.score.q.dtype == SMLA_F64 ? SMLA_F64 : SMLA_F32;
    std::vector<double> memory(static_cast<size_t>(args.columns));  // large enough for float and double
    const Tensor logits = make_tensor(memory.data(), dtype, {1, args.columns});
    for (int64_t t = begin; t < end; ++t) {
        ScoreOp::reference(score_part(args, t, t + 1, logits), 0, 1);
        SelectOp::reference(select_part(args, t, t + 1, logits), 0, 1);
    }
}

}  // namespace smla
