#include "kit/problems/score.h"

#include "formats/layouts.h"
#include "ops/score/score.h"

#include <cmath>
#include <cstring>

namespace smla::kit {

namespace {

// Bound on the multiplications of one problem, which runs a dozen times.
constexpr int64_t kWork = 2'000'000, kSmallWork = 25'000;

// Problems of score, which only compare the logits.
class ScoreProblem : public ProblemOf<Stage::score> {
public:
    explicit ScoreProblem(const Draw& draw) : ProblemOf(draw), inputs_(*this, args, of_model(), small()) {
        args.fill = random.chance(0.5);
        const smla_dtype stored = random.pick<smla_dtype>({SMLA_F32, SMLA_F32, SMLA_BF16});
        args.logits = memory.tensor(stored, {inputs_.tokens, inputs_.columns});
        if (stored == SMLA_BF16) description += ", to bf16";
        if (unwanted()) return;
        inputs_.fill(*this, args);
        expect();
    }

    void expect() override {
        memory.allow_nothing();
        const int64_t tokens = args.logits.shape[0], columns = args.logits.shape[1];
        for (int64_t t = 0; t < tokens; ++t) {
            const ColumnWindow window = clamp_window(args.starts, args.ends, t, columns);
            if (args.fill) memory.allow(args.logits, t, 0, columns);
            else memory.allow(args.logits, t, window.begin, window.end - window.begin);
        }
        memory.remember();
        inputs_.expect(*this, args, columns, args.fill);
    }

    void compare(const std::string& kernel, Comparison& out) const override {  // others stay NaN
        const double rounding = args.logits.dtype == SMLA_BF16 ? 0x1p-8 : 0;   // rounding of a sum
        out.close("logits", args.logits, inputs_.logits.values, [&](size_t i) {
            const double sum = inputs_.allowed(kernel, i);
            return sum + rounding * (std::fabs(inputs_.logits.values[i]) + sum);
        });
    }

private:
    ScoreInputs inputs_;
};

}  // namespace

void fill_windows(Problem& problem, Tensor& starts, Tensor& ends, bool need_ends, int64_t tokens,
                  int64_t columns) {
    Random& random = problem.random;
    const auto bound = [&] {
        if (random.chance(0.1)) return random.pick<int64_t>({-1, INT32_MIN, INT32_MAX, columns + 1});
        return random.between(0, columns);
    };
    if (random.chance(0.5)) {
        starts = problem.memory.tensor(SMLA_I32, {tokens}, Inner::any);
        for (int64_t t = 0; t < tokens; ++t) set_int(starts, t, 0, random.chance(0.5) ? 0 : bound());
    }
    if (!need_ends && random.chance(0.3)) return;
    ends = problem.memory.tensor(SMLA_I32, {tokens}, Inner::any);
    for (int64_t t = 0; t < tokens; ++t) set_int(ends, t, 0, random.chance(0.5) ? columns : bound());
}

ScoreInputs::ScoreInputs(Problem& problem, smla_score_args& args, bool of_model, bool small) {
    Random& random = problem.random;
    exact = random.chance(0.4);
    const auto format = random.pick<smla_format>(
        {SMLA_INDEX_FP8_132, SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68, SMLA_ROW_BF16, SMLA_ROW_F32});
    const bool any_width = find_format(format)->width == 0 && !of_model && random.chance(0.6);
    const int64_t width = any_width ? random.log_between(1, 300) : 128;
    const int64_t heads = random.chance(0.5) ? random.pick<int64_t>({16, 32, 64}) : random.log_between(1, 80);
    tokens = random.chance(0.03) ? 0 : random.log_between(1, 20);
    const int64_t most = (small ? kSmallWork : kWork) / (width * heads * std::max<int64_t>(tokens, 1)) + 5;
    columns = random.chance(0.03) ? 0 : random.log_between(1, std::min<int64_t>(most, 3000));
    draw_queries(problem, args, heads, width);
    fill_windows(problem, args.starts, args.ends, true, tokens, columns);
    draw_keys(problem, args, format, width);
    args.precision =
        random.pick<smla_precision>({SMLA_PRECISION_DEFAULT, SMLA_PRECISION_EXACT, SMLA_PRECISION_ROUNDED});
    problem.description =
        text("T", tokens, " Hi", heads, " D", width, " q ", dtype_name(args.q.dtype), ", ",
             find_format(format)->name, " pages of ", args.keys.page_tokens,
             present(args.block_table) ? "" : " ragged", ", ", columns, " columns", exact ? ", whole" : "",
             args.precision == SMLA_PRECISION_ROUNDED ? ", rounded" : "");
}

void ScoreInputs::fill(Problem& problem, const smla_score_args& args) {
    fill_queries(problem.random, args);
    fill_keys(problem, args);
}

void ScoreInputs::draw_queries(Problem& problem, smla_score_args& args, int64_t heads, int64_t width) {
    Random& random = problem.random;
    auto dtype = random.pick<smla_dtype>({SMLA_E4M3, SMLA_E4M3, SMLA_BF16, SMLA_F32, SMLA_E2M1});
    if (dtype == SMLA_E2M1 && width % 32 != 0) dtype = SMLA_E4M3;
    args.q = problem.memory.tensor(dtype, {tokens, heads, width});
    args.w = problem.memory.tensor(SMLA_F32, {tokens, heads}, Inner::any);
    if (dtype == SMLA_E2M1) args.q_scales = problem.memory.tensor(SMLA_E8M0, {tokens, heads, width / 32});
}

void ScoreInputs::fill_queries(Random& random, const smla_score_args& args) {
    const smla_dtype dtype = args.q.dtype;
    if (!exact) {
        fill_normal(args.q, random, dtype == SMLA_E4M3 ? 100 : 1);
        fill_normal(args.w, random, 0.02);
        if (dtype == SMLA_E2M1) fill_normal(args.q_scales, random, 1);
        if (random.chance(0.1)) fill_constant(args.w, random.pick({0., -0.}));
        return;
    }
    each_index(args.q, [&](int64_t t, int64_t h, int64_t d, int64_t) {
        set_value(args.q, t, h, d, 0, double(random.between(-2, 2)));
    });
    each_index(args.w, [&](int64_t t, int64_t h, int64_t, int64_t) {
        set_value(args.w, t, h, 0, 0, random.pick({1., 2., -1., -2., 0.5}));
    });
    if (dtype == SMLA_E2M1) fill_constant(args.q_scales, 1);
}

void ScoreInputs::draw_keys(Problem& problem, smla_score_args& args, smla_format format, int64_t width) {
    Random& random = problem.random;
    const auto page_tokens =
        int32_t(random.chance(0.6) ? random.pick({64, 64, 128}) : random.log_between(1, 100));
    const int64_t blocks = ceil_div(columns, page_tokens);
    const int64_t requests = random.chance(0.3) ? std::max<int64_t>(1, tokens) : random.between(1, 3);
    const bool paged = random.chance(0.75);
    const int64_t pages = paged ? std::max<int64_t>(1, blocks * requests) : std::max<int64_t>(1, blocks);
    args.keys = problem.memory.cache({format, width, pages, page_tokens});
    if (!paged) return;
    const int64_t named = std::max<int64_t>(0, blocks + random.between(random.chance(0.1) ? -1 : 0, 2));
    args.block_table = problem.memory.tensor(SMLA_I32, {requests, named}, Inner::any);
    args.request_of_token = problem.memory.tensor(SMLA_I32, {tokens}, Inner::any);
    const double bad = random.pick({0., 0., 0.1});
    for (int64_t t = 0; t < tokens; ++t)
        set_int(args.request_of_token, t, 0,
                random.chance(bad) ? random.pick<int64_t>({-1, INT32_MIN, requests, INT32_MAX})
                                   : random.between(0, requests - 1));
    each_index(args.block_table, [&](int64_t r, int64_t b, int64_t, int64_t) {
        set_int(args.block_table, r, b,
                random.chance(bad) ? random.pick<int64_t>({-1, INT32_MIN, pages, INT32_MAX})
                                   : random.between(0, pages - 1));
    });
}

// Keys outside all windows stay NaN, and occasionally one key inside a window.
void ScoreInputs::fill_keys(Problem& problem, const smla_score_args& args) {
    Random& random = problem.random;
    const CacheView keys(args.keys);
    KeyColumns rows(args, keys);
    std::vector<uint8_t> done(size_t(std::max<int64_t>(keys.capacity, 0)));
    std::vector<float> values(static_cast<size_t>(keys.width));
    const double nan = random.chance(0.2) ? 0.02 : 0, spread = random.pick({1., 30.});
    for (int64_t t = 0; t < tokens; ++t) {
        const ColumnWindow window = clamp_window(args.starts, args.ends, t, columns);
        rows.set_token(t);
        for (int64_t j = window.begin; j < window.end; ++j) {
            const int64_t row = rows.row(j);
            if (row < 0 || done[size_t(row)]) continue;
            done[size_t(row)] = 1;
            if (random.chance(nan)) continue;
            for (float& value : values)
                value = exact ? float(random.between(-2, 2)) : float(spread * random.normal());
            keys.encode(row, values.data());
            if (exact || keys.format->id != SMLA_INDEX_FP8_132) continue;
            // writers store powers of two; readers accept any f32
            using Layout = layout::IndexFp8_132;
            const RecordAt at = keys.at(row);
            const auto scale = float(random.uniform(0.001, 0.3));
            std::memcpy(at.page + Layout::scale_at(at.page_tokens, at.offset), &scale, sizeof scale);
        }
    }
}

// A logit is key_scale * sum_h w_h relu(q_h . k): H sums of D products in f32, then one sum of H terms, each
// in any order. relu does not increase errors; three more roundings follow. |q_h . k| <= |q_h| |k|.
void ScoreInputs::expect(const Problem& problem, const smla_score_args& args, int64_t columns_asked,
                         bool fill) {
    tokens = args.q.shape[0];
    columns = columns_asked;
    const int64_t heads = args.q.shape[1], width = args.q.shape[2];
    Doubles q(args.q);
    const Doubles w(args.w), scales(args.q_scales);
    for (size_t i = 0; i < q.values.size() && present(args.q_scales); ++i)
        q.values[i] *= scales.values[i / 32];
    logits = Doubles::like(make_tensor(&args, SMLA_F64, {tokens, columns}));
    smla_score_args exactly = args;
    exactly.fill = fill;
    exactly.q = q.tensor();
    exactly.q_scales = {};
    exactly.w = w.tensor();
    exactly.logits = logits.tensor();
    ScoreOp::check(exactly);
    ScoreOp::reference(exactly, 0, tokens);

    bound.assign(size_t(tokens * columns), 0);
    const double share = problem.sum_error(width) + problem.sum_error(heads) + 4 * kF32;
    const CacheView keys(args.keys);
    KeyColumns rows(args, keys);
    std::vector<double> key(static_cast<size_t>(width));
    const auto norm = [](const double* values, int64_t n) {
        double square = 0;
        for (int64_t i = 0; i < n; ++i) square += values[i] * values[i];
        return std::sqrt(square);
    };
    for (int64_t t = 0; t < tokens; ++t) {
        double query = 0;
        for (int64_t h = t * heads; h < (t + 1) * heads; ++h)
            query += std::fabs(w.values[size_t(h)]) * norm(q.values.data() + h * width, width);
        const ColumnWindow window = clamp_window(args.starts, args.ends, t, columns);
        rows.set_token(t);
        for (int64_t j = window.begin; j < window.end; ++j) {
            if (rows.row(j) < 0) continue;
            keys.decode(rows.row(j), key.data());
            bound[size_t(t * columns + j)] = share * query * norm(key.data(), width) + 1e-36;
        }
    }
    expect_rounded(args, q, w);
}

// The tensor cores of Hopper align 32 e4m3 products and the previous sum to the largest exponent among them
// and truncate each to 14 bits, of which two leading bits may be those of a product of two significands. Each
// of the 33 terms therefore loses less than 2^-12 of the largest, in each of the D / 32 steps. In any order,
// no product and no sum is larger than the sum of the positive products or of the negative products.
void ScoreInputs::expect_rounded(const smla_score_args& args, const Doubles& q, const Doubles& w) {
    if (args.precision != SMLA_PRECISION_ROUNDED || args.q.dtype != SMLA_E4M3) return;
    if (args.keys.format != SMLA_INDEX_FP8_132) return;
    const int64_t heads = args.q.shape[1], width = args.q.shape[2];
    const double share = double(width / 32 * 33) * 0x1p-12;
    rounded.assign(size_t(tokens * columns), 0);
    const CacheView keys(args.keys);
    KeyColumns rows(args, keys);
    std::vector<double> key(static_cast<size_t>(width));
    for (int64_t t = 0; t < tokens; ++t) {
        const ColumnWindow window = clamp_window(args.starts, args.ends, t, columns);
        rows.set_token(t);
        for (int64_t j = window.begin; j < window.end; ++j) {
            if (rows.row(j) < 0) continue;
            keys.decode(rows.row(j), key.data());
            double sum = 0;
            for (int64_t h = t * heads; h < (t + 1) * heads; ++h) {
                double above = 0, below = 0;
                for (int64_t d = 0; d < width; ++d) {
                    const double product = q.values[size_t(h * width + d)] * key[size_t(d)];
                    (product > 0 ? above : below) += product;
                }
                sum += std::fabs(w.values[size_t(h)]) * std::max(above, -below);
            }
            rounded[size_t(t * columns + j)] = share * sum;
        }
    }
}

std::unique_ptr<Problem> make_score(Stage, const Draw& draw) { return std::make_unique<ScoreProblem>(draw); }

}  // namespace smla::kit
