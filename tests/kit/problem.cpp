#include "kit/problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace smla::kit {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string place(const char* name, const Tensor& tensor, size_t flat) {
    std::string out;
    for (int d = tensor.ndim - 1; d >= 0; --d) {
        const auto n = size_t(tensor.shape[d]);
        out = text(flat % n, out.empty() ? "" : ",") + out;
        flat /= n;
    }
    return text(name, "[", out, "]");
}

std::string got_want(double got, double want) { return text(" is ", got, ", wanted ", want); }

// Returns whether numbers are equal; NaN equals NaN, an infinity equals itself.
bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

double sum_error(int64_t terms, bool equal_terms) {
    const auto n = double(terms);
    return 2 * kF32 * ((equal_terms ? std::max(std::sqrt(n), n / 2) : std::sqrt(n)) + 1);
}

double rounding(smla_dtype dtype) {
    switch (dtype) {
        case SMLA_BF16: return 0x1p-8;
        case SMLA_F16: return 0x1p-11;
        case SMLA_F32: return kF32;
        default: return 0;
    }
}

double smallest_step(smla_dtype dtype) { return dtype == SMLA_F16 ? 0x1p-24 : 1e-37; }

void Comparison::note(double error, double bound, const std::string& where) {
    // an infinity in the wrong place is an error for every bound
    const double share = error <= 0 ? 0 : !std::isfinite(error) || !(bound > 0) ? kInfinity : error / bound;
    if (share < worst || (share == worst && !what.empty())) return;
    worst = share;
    what = where;
}

void Comparison::near(double got, double want, double bound, const std::string& where) {
    if (same(got, want)) return;
    note(std::isfinite(got) && std::isfinite(want) ? std::fabs(got - want) : kInfinity, bound, where);
}

void Comparison::check(bool holds, const std::string& failure) {
    if (!holds) note(kInfinity, 1, failure);
}

void Comparison::close(const char* name, const Tensor& got, const std::vector<double>& want,
                       const std::function<double(size_t)>& bound) {
    const Doubles values(got);
    for (size_t i = 0; i < want.size(); ++i) {
        const double a = values.values[i], b = want[i];
        if (same(a, b)) continue;
        const double error = std::isfinite(a) && std::isfinite(b) ? std::fabs(a - b) : kInfinity;
        const double allowed = bound(i);
        if (!(error <= worst * allowed)) note(error, allowed, place(name, got, i) + got_want(a, b));
    }
}

void Comparison::rows_close(const char* name, const Tensor& got, const std::vector<double>& want,
                            const std::function<double(size_t)>& bound_of_row) {
    const Doubles values(got);
    const auto n = size_t(got.shape[got.ndim - 1]);
    for (size_t row = 0; n > 0 && row < want.size() / n; ++row) {
        double error = 0;
        size_t worst_at = 0;
        double worst_here = -1;
        for (size_t i = row * n; i < (row + 1) * n; ++i) {
            if (same(values.values[i], want[i])) continue;
            const bool finite = std::isfinite(values.values[i]) && std::isfinite(want[i]);
            const double difference = finite ? std::fabs(values.values[i] - want[i]) : kInfinity;
            error += difference * difference;
            if (difference > worst_here) worst_at = i;
            worst_here = std::max(worst_here, difference);
        }
        if (error == 0) continue;
        note(std::sqrt(error), bound_of_row(row),
             place(name, got, worst_at) + got_want(values.values[worst_at], want[worst_at]));
    }
}

void Comparison::equal(const char* name, const Tensor& got, const std::vector<double>& want) {
    const Doubles values(got);
    for (size_t i = 0; i < want.size(); ++i)
        if (!same(values.values[i], want[i]))
            return check(false, place(name, got, i) + got_want(values.values[i], want[i]));
}

void Comparison::equal_bytes(const char* name, const std::vector<uint8_t>& got,
                             const std::vector<uint8_t>& want) {
    for (size_t i = 0; i < want.size(); ++i)
        if (got[i] != want[i]) return check(false, text(name, ": byte ", i, got_want(got[i], want[i])));
}

namespace {
int64_t longest(const Draw& draw) {
    return draw.small ? Random(~draw.seed).pick<int64_t>({2, 3, 3, 4, 4, 8, 8, 16}) : INT64_MAX;
}
}  // namespace

Problem::Problem(const Draw& draw)
    : random(draw.seed, longest(draw)),
      memory(draw.seed ^ 0x5bd1e995, draw.of_model, draw.walls),
      draw_(draw) {}

std::unique_ptr<Problem> make_problem(Stage stage, const Draw& draw) {
    const auto maker = [&]() -> MakeProblem* {
        switch (stage) {
            case Stage::norm: return make_norm;
            case Stage::rope:
            case Stage::inverse_rope: return make_rope;
            case Stage::project:
            case Stage::absorb:
            case Stage::up_project:
            case Stage::out_project: return make_project;
            case Stage::quant_index_q: return make_quant_index_q;
            case Stage::write_kv:
            case Stage::write_index: return make_write;
            case Stage::save_state: return make_save_state;
            case Stage::compress: return make_compress;
            case Stage::gather: return make_gather;
            case Stage::copy_pages: return make_copy_pages;
            case Stage::map: return make_map;
            case Stage::score: return make_score;
            case Stage::select: return make_select;
            case Stage::score_select: return make_score_select;
            case Stage::score_select_blocks: return make_score_select_blocks;
            case Stage::attend: return make_attend;
            case Stage::merge: return make_merge;
        }
        fail(SMLA_INTERNAL, "kit", std::to_string(int(stage)), "a stage");
    }();
    std::unique_ptr<Problem> out = maker(stage, draw);
    if (out->given_up()) return nullptr;
    return out;
}

}  // namespace smla::kit
