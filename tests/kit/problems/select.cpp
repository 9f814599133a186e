// Problems of select and score_select.
#include "kit/problems/score.h"

#include "ops/score/score.h"
#include "ops/score_select/score_select.h"
#include "ops/select/select.h"

#include <cmath>
#include <cstring>

namespace smla::kit {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Adds rows of a cache for the selection, from a table that often has too few columns.
void add_rows(Problem& problem, smla_select_args& args, int64_t tokens, int64_t columns) {
    Random& random = problem.random;
    args.page_tokens = int32_t(random.log_between(1, 300));
    if (random.chance(0.3)) args.page_rows = args.page_tokens + int32_t(random.between(0, 9));
    const int64_t pages = ceil_div(columns, args.page_tokens);
    args.rows = problem.memory.tensor(SMLA_I32, {tokens, args.indices.shape[1]});
    args.row_table = problem.memory.tensor(
        SMLA_I32, {random.between(1, 4), random.chance(0.3) ? random.between(1, pages + 1) : pages + 1},
        Inner::any);
}
void fill_row_table(Problem& problem, const Tensor& table) {
    Random& random = problem.random;
    each_index(table, [&](int64_t r, int64_t i, int64_t, int64_t) {
        const int64_t page =
            random.chance(0.1) ? random.pick<int64_t>({-1, INT32_MIN, INT32_MAX}) : random.between(0, 5000);
        set_int(table, r, i, page);
    });
}

// Requires that each row is the row of its selected column. `given` has requests and windows.
void compare_rows(const smla_select_args& given, int64_t columns, Comparison& out) {
    const BlockTable table = row_table_of(given);
    each_index(given.rows, [&](int64_t t, int64_t i, int64_t, int64_t) {
        const int64_t begin = given.relative ? clamp_window(given.starts, given.ends, t, columns).begin : 0;
        const int64_t index = load_int(given.indices, t, i), row = load_int(given.rows, t, i);
        const int64_t wanted =
            index < 0 ? -1 : row_of(table, load_int(given.request_of_token, t), index + begin);
        out.check(row == wanted, text("rows[", t, ",", i, "] is ", row, ", wanted ", wanted));
    });
}

class SelectProblem : public ProblemOf<Stage::select> {
public:
    explicit SelectProblem(const Draw& draw) : ProblemOf(draw) {
        const bool many = random.chance(0.01);  // rows that one block holds, and more than clusters of two
        const int64_t tokens =
            many ? random.between(70, 130) : random.between(random.chance(0.05) ? 0 : 1, 5);
        const int64_t columns = many                  ? random.between(16'385, 33'000)
                                : random.chance(0.05) ? 0
                                : random.chance(0.25) ? random.log_between(4000, 40'000)
                                                      : random.log_between(1, 4000);
        const int64_t k = random.chance(0.3) ? random.log_between(1, 3000) : random.between(1, columns + 20);
        args.scores = memory.tensor(
            random.pick<smla_dtype>({SMLA_F32, SMLA_F32, SMLA_F32, SMLA_BF16, SMLA_F16}), {tokens, columns});
        fill_windows(*this, args.starts, args.ends, false, tokens, columns);
        if (random.chance(0.2)) args.ids = memory.tensor(SMLA_I32, {tokens, columns});
        else args.relative = random.chance(0.3);
        args.indices = memory.tensor(SMLA_I32, {tokens, k});
        if (random.chance(0.7)) args.selected = memory.tensor(SMLA_F32, {tokens, k});
        if (random.chance(0.7)) args.counts = memory.tensor(SMLA_I32, {tokens}, Inner::any);
        if (!present(args.ids) && random.chance(0.4)) add_rows(*this, args, tokens, columns);
        if (present(args.rows)) args.request_of_token = memory.tensor(SMLA_I32, {tokens}, Inner::any);
        description =
            text(k, " of ", columns, " ", dtype_name(args.scores.dtype), " scores, ", tokens, " tokens",
                 present(args.ids) ? ", with ids" : "", present(args.rows) ? ", rows" : "");
        if (unwanted()) return;
        fill_scores();
        if (present(args.rows)) {
            fill_row_table(*this, args.row_table);
            each_index(args.request_of_token, [&](int64_t t, int64_t, int64_t, int64_t) {
                set_int(args.request_of_token, t, 0, random.between(-1, args.row_table.shape[0]));
            });
        }
        if (present(args.ids)) fill_ids();
        expect();
    }

    void expect() override {
        memory.allow_nothing();
        for (const Tensor* each : {&args.indices, &args.selected, &args.counts, &args.rows})
            memory.allow(*each);
        memory.remember();
        const Doubles scores(args.scores);
        selected_ = Doubles::like(args.selected);
        smla_select_args exact = args;
        exact.scores = scores.tensor();
        exact.selected = selected_.tensor();
        SelectOp::check(exact);
        SelectOp::reference(exact, 0, SelectOp::tasks(exact));
        indices_ = Doubles(args.indices);
        counts_ = Doubles(args.counts);
        memory.reset();
    }

    void compare(const std::string&, Comparison& out) const override {
        out.equal("indices", args.indices, indices_.values);
        out.equal("counts", args.counts, counts_.values);
        if (present(args.rows)) compare_rows(args, args.scores.shape[1], out);
        out.equal("selected", args.selected, selected_.values);
    }

private:
    void fill_scores() {
        const int style = int(random.between(0, 4));
        const int64_t levels = random.log_between(1, 12);
        each_index(args.scores, [&](int64_t t, int64_t j, int64_t, int64_t) {
            double value = random.normal();
            if (style == 1) value = double(random.between(0, levels)) - 1;  // equal scores
            if (style == 2) value = std::max(value, 0.);                    // like values after relu
            if (style == 3 && random.chance(0.3))
                value = random.pick({0., -0., kInfinity, -kInfinity, std::nan(""), 1e-40, -1e-40});
            if (style == 4) value = random.chance(0.5) ? -kInfinity : std::nan("");
            set_value(args.scores, t, j, 0, 0, value);
        });
    }
    void fill_ids() {
        each_index(args.ids, [&](int64_t t, int64_t j, int64_t, int64_t) {
            const bool skipped = random.chance(0.1);
            set_int(args.ids, t, j,
                    skipped ? random.pick<int64_t>({-1, INT32_MIN}) : random.between(0, 100000));
        });
    }
    Doubles indices_, counts_, selected_;
};

// score_select: if all orders of summation give the same logits, the selection has the bits of the reference;
// otherwise no omitted column may be better than a selected column by more than the error of both. For all
// data, the selection has the bits of score and then select in the same context.
class ScoreSelectProblem : public ProblemOf<Stage::score_select> {
public:
    explicit ScoreSelectProblem(const Draw& draw)
        : ProblemOf(draw), inputs_(*this, args.score, of_model(), small()) {
        args.columns = int32_t(inputs_.columns);
        const int64_t k = random.chance(0.5) ? random.log_between(1, 2048)
                                             : random.between(1, std::max<int64_t>(inputs_.columns, 1) + 9);
        args.select.relative = random.chance(0.3);
        args.select.indices = memory.tensor(SMLA_I32, {inputs_.tokens, k});
        if (random.chance(0.7)) args.select.selected = memory.tensor(SMLA_F32, {inputs_.tokens, k});
        if (random.chance(0.7)) args.select.counts = memory.tensor(SMLA_I32, {inputs_.tokens}, Inner::any);
        if (present(args.score.request_of_token) && random.chance(0.5))
            add_rows(*this, args.select, inputs_.tokens, inputs_.columns);
        description += text(", k ", k, present(args.select.rows) ? ", rows" : "");
        if (unwanted()) return;
        inputs_.fill(*this, args.score);
        if (present(args.select.rows)) fill_row_table(*this, args.select.row_table);
        expect();
    }

    void expect() override {
        memory.allow_nothing();
        for (const Tensor* each :
             {&args.select.indices, &args.select.selected, &args.select.counts, &args.select.rows})
            memory.allow(*each);
        memory.remember();
        inputs_.expect(*this, args.score, args.columns, false);
        select();
    }

    void run(Context& context, const std::string& kernel, size_t budget, Comparison& out) override {
        ProblemOf::run(context, kernel, budget, out);
        if (!alone) compare_with_pair(context, kernel, out);
    }

    void compare(const std::string& kernel, Comparison& out) const override {
        if (present(args.select.rows))
            compare_rows(select_part(args, 0, inputs_.tokens, {}), inputs_.columns, out);
        if (inputs_.exact) {
            out.equal("indices", args.select.indices, indices_.values);
            out.equal("counts", args.select.counts, counts_.values);
            out.equal("selected", args.select.selected, selected_.values);
            return;
        }
        for (int64_t t = 0; t < inputs_.tokens; ++t) compare_token(t, kernel, out);
    }

private:
    // NaN ranks below -inf, and -inf below all other scores.
    static double rank(double score) {
        return std::isnan(score) ? -2e300 : score == -kInfinity ? -1e300 : score;
    }
    void compare_token(int64_t t, const std::string& kernel, Comparison& out) const;
    void compare_with_pair(Context& context, const std::string& kernel, Comparison& out) const;
    void select() {
        smla_select_args exact = args.select;
        selected_ = Doubles::like(exact.selected);
        exact.scores = inputs_.logits.tensor();
        exact.starts = args.score.starts;
        exact.ends = args.score.ends;
        if (present(exact.rows)) exact.request_of_token = args.score.request_of_token;
        exact.selected = selected_.tensor();
        SelectOp::check(exact);
        SelectOp::reference(exact, 0, inputs_.tokens);
        indices_ = Doubles(exact.indices);
        counts_ = Doubles(exact.counts);
        memory.reset();
    }

    ScoreInputs inputs_;
    Doubles indices_, counts_, selected_;
};

void ScoreSelectProblem::compare_token(int64_t t, const std::string& kernel, Comparison& out) const {
    const smla_select_args& select = args.select;
    const ColumnWindow window = clamp_window(args.score.starts, args.score.ends, t, inputs_.columns);
    const int64_t k = select.indices.shape[1], count = std::min(k, window.end - window.begin);
    const double* logits = inputs_.logits.values.data() + t * inputs_.columns;
    const auto bound = [&](int64_t j) { return inputs_.allowed(kernel, size_t(t * inputs_.columns + j)); };
    if (present(select.counts))
        out.check(load_int(select.counts, t) == count, text("counts[", t, "] is not ", count));
    std::vector<uint8_t> taken(static_cast<size_t>(inputs_.columns));
    int64_t before = -1, worst = -1;
    const auto sure = [&](int64_t j) { return rank(logits[j]) + bound(j); };  // at most
    for (int64_t i = 0; i < k; ++i) {
        const int64_t index = load_int(select.indices, t, i);
        const int64_t column = index + (select.relative ? window.begin : 0);
        const double score = present(select.selected) ? load_one<double>(select.selected, t, i) : 0;
        if (i >= count) {
            out.check(index == -1, text("indices[", t, ",", i, "] is ", index, " after the last"));
            if (present(select.selected))
                out.check(score == -kInfinity, "selected is not -inf after the last");
            continue;
        }
        if (column < window.begin || column >= window.end || column <= before)
            return out.check(false,
                             text("indices[", t, ",", i, "] is ", index, ", not ascending or outside"));
        before = column;
        taken[size_t(column)] = 1;
        if (worst < 0 || sure(column) < sure(worst)) worst = column;
        const double want = logits[column];
        const bool special = std::isnan(want) || std::isinf(want);
        if (present(select.selected) && special)
            out.check(std::isnan(want) == std::isnan(score) && (std::isnan(want) || want == score),
                      text("selected[", t, ",", i, "] is ", score, ", wanted ", want));
        else if (present(select.selected))
            out.note(std::fabs(score - want), bound(column),
                     text("selected[", t, ",", i, "] is ", score, ", wanted ", want));
    }
    for (int64_t j = window.begin; j < window.end && worst >= 0; ++j) {
        if (taken[size_t(j)]) continue;
        const double better = rank(logits[j]) - rank(logits[worst]), allowed = bound(j) + bound(worst);
        if (better > 0)
            out.note(better, allowed,
                     text("token ", t, " left out column ", j, " of ", logits[j], " and took ", worst, " of ",
                          logits[worst]));
    }
}

void ScoreSelectProblem::compare_with_pair(Context& context, const std::string& kernel,
                                           Comparison& out) const {
    const int64_t tokens = inputs_.tokens, k = args.select.indices.shape[1];
    std::vector<float> logits(size_t(tokens * inputs_.columns) + 1), selected(size_t(tokens * k) + 1);
    std::vector<int32_t> indices(size_t(tokens * k) + 1);
    smla_score_args score = args.score;
    score.logits = make_tensor(logits.data(), SMLA_F32, {tokens, inputs_.columns});
    smla_select_args select = args.select;
    select.scores = score.logits;
    select.starts = score.starts;
    select.ends = score.ends;
    select.counts = select.rows = select.row_table = {};
    select.indices = make_tensor(indices.data(), SMLA_I32, {tokens, k});
    select.selected = make_tensor(selected.data(), SMLA_F32, {tokens, k});
    Env env = context.env({});
    // the generic kernel runs the generic kernels of both stages
    if (kernel.find("generic") != std::string::npos)
        env.demanded[size_t(Stage::score)] = kernel_names(Stage::score, env.engine).back();
    run_placed<Stage::score>(score, env);
    run_placed<Stage::select>(select, env);
    const auto bits = [](const Tensor& tensor, int64_t t, int64_t i) {
        uint32_t out;
        std::memcpy(&out, address(tensor, t, i), sizeof out);
        return out;
    };
    each_index(args.select.indices, [&](int64_t t, int64_t i, int64_t, int64_t) {
        out.check(bits(args.select.indices, t, i) == bits(select.indices, t, i),
                  text("indices[", t, ",", i, "] is ", load_int(args.select.indices, t, i),
                       ", score and select give ", load_int(select.indices, t, i)));
        if (present(args.select.selected))
            out.check(bits(args.select.selected, t, i) == bits(select.selected, t, i),
                      text("selected[", t, ",", i, "] is not that of score and select"));
    });
}

}  // namespace

std::unique_ptr<Problem> make_score_select(Stage, const Draw& draw) {
    return std::make_unique<ScoreSelectProblem>(draw);
}
std::unique_ptr<Problem> make_select(Stage, const Draw& draw) {
    return std::make_unique<SelectProblem>(draw);
}

}  // namespace smla::kit
