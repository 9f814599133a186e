// The specification of score_select_blocks: score on the columns of each candidate block, then select among
// these columns and among the blocks' maxima.
#include "ops/score_select_blocks/score_select_blocks.h"
#include "ops/select/select.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

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
                   text(block_count(args), " (the blocks of ", args.columns, " columns)"));
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

namespace {

// Returns a tensor of one token.
template <class T>
Tensor row_of(std::vector<T>& values, smla_dtype dtype) {
    return make_tensor(values.data(), dtype, {1, int64_t(values.size())});
}
Tensor token_of(const Tensor& tensor, int64_t t) {
    return present(tensor) ? slice(tensor, 0, t, t + 1) : tensor;
}

template <class Real>
class Token {
public:
    Token(const smla_score_select_blocks_args& args, int64_t token)
        : args_(args), token_(token), window_(clamp_window(args.starts, args.ends, token, args.columns)) {
        blocks_.resize(
            size_t(present(args.blocks) ? args.blocks.shape[1] : blocks_in(window_, args.block_size)));
        if (present(args.blocks))
            blocks_.resize(size_t(candidate_blocks(args, token, window_, blocks_.data())));
        else std::iota(blocks_.begin(), blocks_.end(), 0);
    }

    void run() {
        score();
        select_columns();
        find_maxima();
        if (present(args_.best_blocks)) select_blocks();
    }

private:
    static constexpr smla_dtype kDtype = std::is_same_v<Real, double> ? SMLA_F64 : SMLA_F32;

    void score() {
        smla_score_args score = score_args_of(args_);
        for (Tensor* each : {&score.q, &score.q_scales, &score.w, &score.request_of_token})
            *each = token_of(*each, token_);
        std::vector<Real> logits(static_cast<size_t>(args_.columns));
        score.logits = row_of(logits, kDtype);
        for (const int32_t block : blocks_) {
            const ColumnWindow part = columns_of_block(window_, args_.block_size, block);
            int32_t begin = int32_t(part.begin), end = int32_t(part.end);
            score.starts = make_tensor(&begin, SMLA_I32, {1});
            score.ends = make_tensor(&end, SMLA_I32, {1});
            ScoreOp::reference(score, 0, 1);
            for (int64_t j = part.begin; j < part.end; ++j) {
                scores_.push_back(logits[size_t(j)]);
                columns_.push_back(int32_t(j));
            }
        }
    }

    void select_columns() {
        smla_select_args select = select_args_of(args_);
        for (Tensor* each : {&select.indices, &select.selected, &select.counts})
            *each = token_of(*each, token_);
        select.relative = 0;
        select.scores = row_of(scores_, kDtype);
        select.ids = row_of(columns_, SMLA_I32);
        SelectOp::reference(select, 0, 1);
        if (!args_.relative) return;
        auto* const indices = reinterpret_cast<int32_t*>(address(args_.indices, token_));
        for (int64_t i = 0; i < args_.indices.shape[1]; ++i)
            if (indices[i] >= 0) indices[i] -= int32_t(window_.begin);
    }

    // Finds the first of the best columns by select's rank: NaN only if all are NaN.
    void find_maxima() {
        size_t at = 0;
        for (const int32_t block : blocks_) {
            const ColumnWindow part = columns_of_block(window_, args_.block_size, block);
            Real best = scores_[at];
            for (int64_t j = part.begin; j < part.end; ++j, ++at)
                if (scores_[at] > best || std::isnan(best)) best = scores_[at];
            const bool newest = part.end == window_.end;
            maxima_.push_back(newest ? std::numeric_limits<Real>::infinity() : best);
        }
        if (!present(args_.block_maxima)) return;
        Real* const out = reinterpret_cast<Real*>(address(args_.block_maxima, token_));
        std::fill(out, out + args_.block_maxima.shape[1], -std::numeric_limits<Real>::infinity());
        for (size_t i = 0; i < blocks_.size(); ++i) out[blocks_[i]] = maxima_[i];
    }

    void select_blocks() {
        smla_select_args select{};
        select.scores = row_of(maxima_, kDtype);
        select.ids = row_of(blocks_, SMLA_I32);
        select.indices = token_of(args_.best_blocks, token_);
        SelectOp::reference(select, 0, 1);
        const int64_t count = std::min(select.indices.shape[1], int64_t(blocks_.size()));
        if (count == 0 || columns_of_block(window_, args_.block_size, blocks_.back()).end != window_.end)
            return;
        // The newest block stays even if more blocks than the list can contain have a maximum of +inf.
        reinterpret_cast<int32_t*>(select.indices.data)[count - 1] = blocks_.back();
    }

    const smla_score_select_blocks_args& args_;
    int64_t token_;
    ColumnWindow window_;
    std::vector<int32_t> blocks_, columns_;
    std::vector<Real> scores_, maxima_;  // scores of columns_, maxima of blocks_
};

}  // namespace

void ScoreSelectBlocksOp::reference(const Args& args, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
        if (args.q.dtype == SMLA_F64) Token<double>(args, t).run();
        else Token<float>(args, t).run();
    }
}

}  // namespace smla
