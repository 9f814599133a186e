#include "oracle.h"

#include "kit/values.h"
#include "ops/ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace smla::cli {

using kit::Doubles;

namespace {

double relative_l2(const std::vector<double>& got, const std::vector<double>& wanted) {
    double error = 0, size = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
        error += (got[i] - wanted[i]) * (got[i] - wanted[i]);
        size += wanted[i] * wanted[i];
    }
    if (std::isnan(error)) return std::numeric_limits<double>::infinity();
    return size > 0 ? std::sqrt(error / size) : error > 0 ? std::numeric_limits<double>::infinity() : 0;
}

Tensor token_of(const Tensor& tensor, int64_t token) {
    return present(tensor) ? slice(tensor, 0, token, token + 1) : tensor;
}

// Scores of one token in double, for columns [first, first + count); the others stay 0.
std::vector<double> scores(const smla_score_args& args, int64_t token, int64_t columns, int64_t first,
                           int64_t count) {
    smla_score_args one = args;
    for (Tensor* tensor : {&one.q, &one.q_scales, &one.w, &one.request_of_token, &one.starts, &one.ends})
        *tensor = token_of(*tensor, token);
    Doubles q(one.q);
    if (present(one.q_scales)) {
        const auto* scales = static_cast<const uint8_t*>(one.q_scales.data);
        const int64_t groups = one.q_scales.shape[2], size = one.q.shape[2] / groups;
        for (size_t i = 0; i < q.values.size(); ++i)  // tokens are contiguous: Filler made them
            q.values[i] *= double(e8m0_to_f32(scales[int64_t(i) / size]));
    }
    const Doubles w(one.w);
    int32_t window[2] = {int32_t(first), int32_t(first + count)};
    std::vector<double> logits(static_cast<size_t>(columns));
    one.fill = 0;
    one.q = q.tensor();
    one.q_scales = {};
    one.w = w.tensor();
    one.starts = make_tensor(&window[0], SMLA_I32, {1});
    one.ends = make_tensor(&window[1], SMLA_I32, {1});
    one.logits = make_tensor(logits.data(), SMLA_F64, {1, columns});
    ScoreOp::check(one);
    ScoreOp::reference(one, 0, 1);
    return logits;
}

}  // namespace

double attend_error(const smla_attend_args& args, int64_t token, int64_t most_heads) {
    const int64_t heads = std::min(most_heads, args.q.shape[1]);
    smla_attend_args one = args;
    const auto part = [&](const Tensor& tensor) {
        return present(tensor) ? slice(slice(tensor, 0, token, token + 1), 1, 0, heads) : tensor;
    };
    const Doubles q(part(args.q)), sink(present(args.sink) ? slice(args.sink, 0, 0, heads) : args.sink);
    Doubles got(part(args.out)), wanted = Doubles::like(part(args.out));
    if (args.q.dtype == SMLA_E4M3) one.softmax_scale *= args.q_scale, one.q_scale = 0;
    one.q = q.tensor();
    one.sink = present(args.sink) ? sink.tensor() : Tensor{};
    one.out = wanted.tensor();
    one.lse = one.max_logits = {};
    one.out_positions = token_of(one.out_positions, token);
    for (smla_attend_source* source : {&one.primary, &one.extra}) {
        if (source->cache.format == SMLA_FORMAT_NONE) continue;
        source->rows = token_of(source->rows, token);
        source->lengths = token_of(source->lengths, token);
    }
    AttendOp::check(one);
    AttendOp::reference(one, 0, 1);
    return relative_l2(got.values, wanted.values);
}

double score_error(const smla_score_args& args, int64_t token, int64_t first, int64_t count) {
    const std::vector<double> all = scores(args, token, args.logits.shape[1], first, count);
    const std::vector<double> wanted(all.begin() + first, all.begin() + first + count);
    Doubles got(slice(token_of(args.logits, token), 1, first, first + count));
    return relative_l2(got.values, wanted);
}

double selection_error(const smla_score_select_args& args, int64_t token) {
    const int64_t columns = args.columns, k = args.select.indices.shape[1];
    const std::vector<double> all = scores(args.score, token, columns, 0, columns);
    double sum = 0, squares = 0;
    for (const double score : all) {
        sum += score;
        squares += score * score;
    }
    const double deviation = std::sqrt(
        std::max(squares / double(columns) - sum * sum / double(columns) / double(columns), 1e-300));
    std::vector<double> sorted = all;
    const int64_t chosen = std::min(k, columns);
    std::nth_element(sorted.begin(), sorted.begin() + (chosen - 1), sorted.end(), std::greater<>());
    const double threshold = sorted[size_t(chosen - 1)];
    double worst = 0;
    int64_t before = -1;
    for (int64_t j = 0; j < chosen; ++j) {
        const int64_t index = load_int(args.select.indices, token, j);
        if (index <= before || index >= columns) return std::numeric_limits<double>::infinity();
        worst = std::max(worst, (threshold - all[size_t(index)]) / deviation);
        before = index;
    }
    return worst;
}

int64_t wrong_indices(const smla_select_args& args, int64_t token) {
    smla_select_args one = args;
    const int64_t k = args.indices.shape[1];
    std::vector<int32_t> wanted(static_cast<size_t>(k));
    for (Tensor* tensor : {&one.scores, &one.ids, &one.starts, &one.ends}) *tensor = token_of(*tensor, token);
    one.indices = make_tensor(wanted.data(), SMLA_I32, {1, k});
    one.selected = one.counts = one.rows = one.row_table = one.request_of_token = {};
    SelectOp::check(one);
    SelectOp::reference(one, 0, 1);
    int64_t wrong = 0;
    for (int64_t j = 0; j < k; ++j) wrong += load_int(args.indices, token, j) != wanted[size_t(j)];
    return wrong;
}

double merge_error(const smla_merge_args& args) {
    smla_merge_args exact = args;
    const Doubles partials(args.partials), lse(args.lse), sink(args.sink);
    Doubles got(args.out), wanted = Doubles::like(args.out);
    exact.partials = partials.tensor();
    exact.lse = lse.tensor();
    exact.sink = present(args.sink) ? sink.tensor() : Tensor{};
    exact.out = wanted.tensor();
    exact.lse_out = {};
    MergeOp::check(exact);
    MergeOp::reference(exact, 0, MergeOp::tasks(exact));
    return relative_l2(got.values, wanted.values);
}

double project_error(const smla_project_args& args) {
    smla_project_args exact = args;
    const Doubles x(args.x), w(args.w);
    Doubles got(args.out), wanted = Doubles::like(args.out);
    exact.x = x.tensor();
    exact.w = w.tensor();
    exact.out = wanted.tensor();
    ProjectOp::check(exact);
    ProjectOp::reference(exact, 0, ProjectOp::tasks(exact));
    return relative_l2(got.values, wanted.values);
}

}  // namespace smla::cli
