#include "golden/compare.h"

#include "ops/attend/attend.h"

#include <cmath>
#include <limits>

namespace smla::golden {

namespace {

const double kInfinity = std::numeric_limits<double>::infinity();
const double kNothing = std::numeric_limits<double>::quiet_NaN();  // missing column

// Entries are shown for the tokens that complete one: ratio - 1, 2 ratio - 1, ...
std::vector<double> closed_entries(const Golden& golden, int64_t ratio, const Rows& rows) {
    const int64_t width = rows.width();
    std::vector<double> out;
    for (int64_t b = 0; b < golden.batch; ++b)
        for (int64_t t = ratio - 1; t < golden.tokens; t += ratio) {
            const auto at = rows.values.begin() + (b * golden.tokens + t) * width;
            out.insert(out.end(), at, at + width);
        }
    return out;
}

Checked check_topk(const Golden& golden, const std::string& name, const Rows& rows) {
    const std::vector<double> wanted = golden.values(name);
    const int64_t stored = golden.shape(name).back(), width = rows.width();
    double wrong = 0;
    for (int64_t i = 0; i < golden.batch * golden.tokens; ++i)
        for (int64_t j = 0; j < std::max(stored, width); ++j) {
            const double a = j < width ? rows.values[size_t(i * width + j)] : -1;
            const double b = j < stored ? wanted[size_t(i * stored + j)] : -1;
            wrong += a != b;
        }
    return {name, wrong, 0, "set"};
}

// A decode step of one token through the model's own cache: one row of each sequence. What a step selects and
// scores is as wide in the file as the step has keys; further columns of ours are `padding`.
Checked check_step(const Golden& golden, const std::string& name, int64_t token, const Rows& rows,
                   double padding, double tolerance) {
    const std::vector<double> wanted = golden.values(name);
    const int64_t width = rows.width(), stored = int64_t(wanted.size()) / golden.batch;
    std::vector<double> a, b;
    for (int64_t i = 0; i < golden.batch; ++i)
        for (int64_t j = 0; j < std::max(width, stored); ++j) {
            const auto row = rows.values.begin() + (i * golden.tokens + token) * width;
            a.push_back(j < width ? row[j] : padding);
            b.push_back(j < stored ? wanted[size_t(i * stored + j)] : padding);
        }
    return {name, compare(a, b).max, tolerance, tolerance > 0 ? "max" : "set"};
}

}  // namespace

Difference compare(const std::vector<double>& a, const std::vector<double>& b) {
    Difference out;
    if (a.size() != b.size()) return {kInfinity, kInfinity, -1};
    double square = 0, square_a = 0, error = 0, dot = 0, worst = 0;
    size_t finite = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        if (!std::isfinite(b[i])) {
            if (!(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])))) worst = kInfinity;
            continue;
        }
        const double d = std::fabs(a[i] - b[i]);
        worst = std::isnan(d) ? kInfinity : std::max(worst, d);
        square += b[i] * b[i];
        square_a += a[i] * a[i];
        dot += a[i] * b[i];
        error += d * d;
        ++finite;
    }
    const double rms = finite ? std::sqrt(square / double(finite)) : 0;
    out.max = worst / (rms > 0 ? rms : 1);
    out.l2 = std::sqrt(error) / (square > 0 ? std::sqrt(square) : 1);
    out.cosine = square > 0 && square_a > 0 ? dot / std::sqrt(square * square_a) : square == square_a ? 1 : 0;
    return out;
}

std::vector<Checked> check_intermediates(const Golden& golden, size_t layer, const LayerResult& result,
                                         double tolerance) {
    const GoldenLayer& at = golden.layers[layer];
    const int64_t ratio = std::max<int64_t>(at.config.compress_ratio(at.index), 1);
    std::map<std::string, Rows> seen = result.seen;
    if (seen.count("q_nope") && !seen.count("q_rope")) seen["q_rot"] = seen["q_nope"];
    if (seen.count("q_nope") &&
        seen.count("q_rope")) {  // [T,H,nope] and [T,H,rope] of DSA, stored as one tensor
        const Rows &nope = seen["q_nope"], &rope = seen["q_rope"];
        Rows both{{nope.shape[0], nope.shape[1] + rope.shape[1]}, {}};
        for (size_t i = 0; i * size_t(nope.shape[1]) < nope.values.size(); ++i) {
            const auto a = nope.values.begin() + int64_t(i) * nope.shape[1],
                       b = rope.values.begin() + int64_t(i) * rope.shape[1];
            both.values.insert(both.values.end(), a, a + nope.shape[1]);
            both.values.insert(both.values.end(), b, b + rope.shape[1]);
        }
        seen["q_rot"] = both;
    }
    std::vector<Checked> out;
    for (const auto& [name, rows] : seen) {
        const std::string whole = "mid." + name + at.suffix, some = "rows." + name + at.suffix;
        if (name == "topk" || name == "candidates") {
            if (golden.has(whole)) out.push_back(check_topk(golden, whole, rows));
            continue;
        }
        if (golden.has(whole)) {
            const bool of_entries =
                name == "entries" || name == "entries_index" || (name == "latent" && at.config.hybrid);
            const std::vector<double> values = of_entries ? closed_entries(golden, ratio, rows) : rows.values;
            out.push_back({whole, compare(values, golden.values(whole)).max, tolerance, "max"});
        } else if (golden.has(some) && golden.has("rows.index")) {
            const int64_t width = rows.width();
            std::vector<double> picked;
            for (int64_t b = 0; b < golden.batch; ++b)
                for (const double t : golden.values("rows.index")) {
                    const auto from = rows.values.begin() + (b * golden.tokens + int64_t(t)) * width;
                    picked.insert(picked.end(), from, from + width);
                }
            out.push_back({some, compare(picked, golden.values(some)).max, tolerance, "max"});
        }
    }
    return out;
}

std::vector<Checked> check_y(const Golden& golden, size_t layer, const LayerResult& result,
                             Arithmetic arithmetic) {
    const std::string suffix = golden.layers[layer].suffix;
    const std::string name = golden.has("ref.y" + suffix) ? "ref.y" + suffix : "out.y" + suffix;
    const Difference d = compare(result.y, golden.values(name));
    const Tolerance& limit = golden.tolerance;
    if (arithmetic == Arithmetic::bf16)
        return {{name, d.l2, limit.bf16_l2, "l2"},
                {name, d.max, limit.bf16_max, "max"},
                {name, 1 - d.cosine, 1 - limit.bf16_cosine, "1 - cosine"}};
    const bool exact = arithmetic == Arithmetic::f64 && golden.has("ref.y" + suffix);  // out.y is f32 itself
    std::vector<Checked> out{{name, d.max, exact ? limit.f64_y : limit.f32_y, "max"}};
    for (const std::string& also : {"out.y" + suffix, "ref.y_float32_angles" + suffix})
        if (also != name && golden.has(also))
            out.push_back({also, compare(result.y, golden.values(also)).max, limit.f32_y, "max"});
    return out;
}

std::vector<Checked> check_steps(const Golden& golden, size_t layer, const LayerResult& result) {
    const std::string suffix = golden.layers[layer].suffix;
    const Tolerance& limit = golden.tolerance;
    std::vector<Checked> out;
    for (int64_t t = 0; t < golden.tokens; ++t) {
        const auto check = [&](const std::string& what, const Rows& rows, double tolerance) {
            const std::string name = text("step.", t, ".", what, suffix);
            const double padding = what == "topk" ? -1 : what == "index_score" ? -kInfinity : kNothing;
            if (golden.has(name)) out.push_back(check_step(golden, name, t, rows, padding, tolerance));
        };
        check("y", {{golden.layers[layer].config.common.hidden_size}, result.y}, limit.f32_y);
        for (const auto& [name, rows] : result.seen)
            check(name, rows, name == "topk" ? 0 : limit.f32_intermediate);
    }
    return out;
}

double topk_overlap(const Rows& wanted, const LayerResult& result) {
    const auto found = result.seen.find("topk");
    if (found == result.seen.end()) return std::numeric_limits<double>::quiet_NaN();
    const int64_t stored = wanted.width(), width = found->second.width();
    int64_t total = 0, hit = 0;
    for (int64_t i = 0; i < int64_t(wanted.values.size()); ++i) {
        if (wanted.values[size_t(i)] < 0) continue;
        ++total;
        const auto row = found->second.values.begin() + i / stored * width;
        hit += std::find(row, row + width, wanted.values[size_t(i)]) != row + width;
    }
    return total ? double(hit) / double(total) : 1;
}

double topk_overlap(const Golden& golden, size_t layer, const LayerResult& result) {
    const std::string name = "mid.topk" + golden.layers[layer].suffix;
    if (!golden.has(name)) return std::numeric_limits<double>::quiet_NaN();
    return topk_overlap(Rows{{golden.shape(name).back()}, golden.values(name)}, result);
}

Difference recheck_attend(const smla_attend_args& args) {
    const int64_t tokens = args.q.shape[0], heads = args.q.shape[1], width = args.q.shape[2],
                  value = args.out.shape[2];
    std::vector<double> q(size_t(tokens * heads * width)), out(size_t(tokens * heads * value)),
        got(out.size());
    const double scale = query_scale(args);
    for (int64_t t = 0; t < tokens; ++t)
        for (int64_t h = 0; h < heads; ++h) {
            load_row(args.q, address(args.q, t, h), width, q.data() + (t * heads + h) * width);
            load_row(args.out, address(args.out, t, h), value, got.data() + (t * heads + h) * value);
        }
    for (double& each : q) each *= scale;
    smla_attend_args again = args;
    again.q = make_tensor(q.data(), SMLA_F64, {tokens, heads, width});
    again.out = make_tensor(out.data(), SMLA_F64, {tokens, heads, value});
    again.lse = again.max_logits = {};
    AttendOp::check(again);
    AttendOp::reference(again, 0, tokens);
    return compare(got, out);
}

namespace {

bool holds_e2m1(const smla_cache& cache) { return format_bit(cache.format) & kE2m1Formats; }

// Mean of sum_d (q_d k_d)^2 over the token's heads and rows.
double squared_terms(const smla_attend_args& args, const smla_attend_source& source, int64_t t,
                     int64_t& rows_seen) {
    if (source.cache.format == SMLA_FORMAT_NONE) return 0;
    const CacheView cache(source.cache);
    const int64_t heads = args.q.shape[1], width = args.q.shape[2];
    std::vector<int32_t> rows(size_t(source.rows.shape[1]));
    std::vector<double> key(static_cast<size_t>(width)), q(size_t(heads * width));
    for (int64_t h = 0; h < heads; ++h) load_row(args.q, address(args.q, t, h), width, q.data() + h * width);
    const int64_t n = valid_rows(source, cache, t, rows.data());
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) {
        cache.decode(rows[size_t(j)], key.data());
        for (size_t i = 0; i < q.size(); ++i) {
            const double term = q[i] * key[i % size_t(width)];
            sum += term * term;
        }
    }
    rows_seen += n * heads;
    return sum;
}

}  // namespace

double predicted_rounding_error(const smla_attend_args& args) {
    double sum = 0;
    int64_t rows = 0;
    for (int64_t t = 0; t < args.q.shape[0]; ++t)
        for (const smla_attend_source* source : {&args.primary, &args.extra})
            sum += squared_terms(args, *source, t, rows);
    const double scale = softmax_scale(args) * query_scale(args);
    const double n_squared = rows ? sum / double(rows) * scale * scale : 0;
    const bool e2m1 = holds_e2m1(args.primary.cache) || holds_e2m1(args.extra.cache);
    const double rounding = e2m1 ? 0.0951 : 1.0 / 16 / std::sqrt(3.0) / std::sqrt(7.0 / 3);
    return rounding * std::sqrt(1 + n_squared);
}

}  // namespace smla::golden
