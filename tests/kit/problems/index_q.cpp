// Problems of quant_index_q.
#include "core/hadamard.h"
#include "kit/problems/row.h"

#include <cmath>

namespace smla::kit {

namespace {

constexpr int64_t kGroup = 32;  // e2m1 values per scale

class QuantIndexQProblem : public ProblemOf<Stage::quant_index_q> {
public:
    explicit QuantIndexQProblem(const Draw& draw) : ProblemOf(draw) {
        const int64_t tokens = random.chance(0.05) ? 0 : random.log_between(1, 12),
                      heads = random.log_between(1, 70);
        const auto codes = random.pick<smla_dtype>({SMLA_E4M3, SMLA_E2M1, SMLA_BF16, SMLA_F32});
        const bool e2m1 = codes == SMLA_E2M1;
        args.hadamard = random.chance(0.4);
        const int64_t width = args.hadamard ? int64_t(1) << random.between(e2m1 ? 5 : 0, 9)
                              : e2m1        ? kGroup * random.between(1, 8)
                                            : random.log_between(1, 300);
        args.amax_floor = random.pick({0., 1e-10});
        args.factor = 1 / std::sqrt(double(heads * width));
        const auto floats = [&] { return random.pick<smla_dtype>({SMLA_F32, SMLA_BF16, SMLA_F16}); };
        args.q = memory.tensor(floats(), {tokens, heads, width});
        args.w = memory.tensor(floats(), {tokens, heads}, Inner::any);
        args.q_out = memory.tensor(codes, {tokens, heads, width});
        if (e2m1) args.scales = memory.tensor(SMLA_E8M0, {tokens, heads, width / kGroup});
        args.w_out = memory.tensor(SMLA_F32, {tokens, heads}, Inner::any);
        const bool turns = width > 1 && random.chance(0.4);
        if (turns) {
            const int64_t pairs = random.between(0, std::min<int64_t>(width / 2, 40));
            draw_rotation(*this, tokens, pairs, args.positions, args.frequencies);
            args.rope_style = random.pick<smla_rope_style>({SMLA_ROPE_INTERLEAVED, SMLA_ROPE_HALF});
            args.rope_first = int32_t(random.between(0, width - 2 * pairs));
        }
        if (random.chance(turns ? 0.7 : 0.1))
            args.rotated =
                memory.tensor(random.chance(0.6) ? SMLA_F32 : floats(), {tokens, heads, width}, Inner::any);
        fill();
        expect();
        description = text("T", tokens, " Hi", heads, " of ", width, " ", dtype_name(args.q.dtype), " to ",
                           dtype_name(codes), turns ? ", turned" : "", args.hadamard ? ", rotated" : "");
    }

    void expect() override {
        memory.allow_nothing();
        for (const Tensor* each : {&args.q_out, &args.scales, &args.w_out, &args.rotated})
            if (present(*each)) memory.allow(*each);
        memory.remember();
        turn();
    }

    void compare(const std::string&, Comparison& out) const override {
        const Doubles w(args.w), codes(args.q_out), scales(args.scales), w_out(args.w_out);
        const auto width = size_t(args.q.shape[2]);
        if (present(args.rotated))
            out.close("rotated", args.rotated, turned_,
                      [&](size_t i) { return bound_[i] + stored(args.rotated.dtype, turned_[i]); });
        for (size_t row = 0; row < w.values.size(); ++row) {
            std::vector<double> want(turned_.begin() + int64_t(row * width),
                                     turned_.begin() + int64_t((row + 1) * width));
            double norm = 0, spoilt = 0, largest = 0;
            for (size_t d = 0; d < width; ++d) {
                const double error = bound_[row * width + d];
                norm += want[d] * want[d];
                spoilt += error * error;
                largest = std::fmax(largest, error);
            }
            if (args.hadamard) hadamard(want.data(), int64_t(width));
            // H_D / sqrt(D) keeps the norm, also the norm of errors
            const double sums =
                args.hadamard ? sum_error(int64_t(width)) * std::sqrt(norm) + std::sqrt(spoilt) : largest;
            const double folded = w.values[row] * args.factor;
            const double* got = codes.values.data() + row * width;
            double scale = 1;
            if (args.q_out.dtype == SMLA_E4M3 && std::isnan(folded)) {  // w_out includes the scale and is NaN
                out.near(w_out.values[row], folded, 0, text("w_out of row ", row));
                continue;
            }
            if (args.q_out.dtype == SMLA_E4M3) scale = e4m3(want, got, w_out.values[row] / folded, sums, out);
            else if (args.q_out.dtype == SMLA_E2M1)
                e2m1(want, got, scales.values.data() + row * (width / kGroup), sums, out);
            else plain(want, got, sums, out);
            if (!std::isnan(scale))
                out.near(w_out.values[row], folded * scale, 4 * kF32 * std::fabs(folded * scale),
                         text("w_out of row ", row, " is ", w_out.values[row]));
        }
    }

private:
    // Computes the queries rotated by position in double, and the error bound of f32.
    void turn() {
        const Doubles q(args.q), frequencies(args.frequencies);
        const auto width = size_t(args.q.shape[2]);
        const int64_t heads = args.q.shape[1];
        turned_.clear();
        bound_.clear();
        for (int64_t i = 0; i < args.q.shape[0] * heads; ++i) {
            BoundedRow row({q.values.data() + size_t(i) * width, width});
            if (present(args.positions))
                row.rotate({frequencies.values, args.rope_first, args.rope_style == SMLA_ROPE_HALF},
                           double(load_int(args.positions, i / heads)));
            turned_.insert(turned_.end(), row.want.begin(), row.want.end());
            bound_.insert(bound_.end(), row.bound.begin(), row.bound.end());
        }
    }
    void fill() {
        fill_normal(args.q, random, random.pick({0.01, 1., 100.}));
        const int64_t heads = args.q.shape[1], width = args.q.shape[2];
        for (int64_t row = 0; row < args.q.shape[0] * heads; ++row) {
            if (!random.chance(0.1)) continue;
            const double value = random.pick({0., 1e-7, std::nan("")});
            for (int64_t d = 0; d < (std::isnan(value) ? 1 : width); ++d)
                set_value(args.q, row / heads, row % heads, d, 0, value);
        }
        each_index(args.w, [&](int64_t t, int64_t h, int64_t, int64_t) {
            set_value(args.w, t, h, 0, 0, random.uniform(0.25, 2) * (random.chance(0.5) ? 1 : -1));
        });
    }

    void element(size_t d, double got, double want, double bound, Comparison& out) const {
        if (std::isnan(got) && std::isnan(want)) return;
        out.note(std::isfinite(want) ? std::fabs(got - want) : std::fabs(got), bound,
                 text("channel ", d, " is ", got, ", wanted ", want));
    }

    // Checks that the scale is the smallest power of two that fits the row's largest magnitude into `most`,
    // within rounding.
    void check_scale(double scale, double largest, double most, double sums, Comparison& out) const {
        const double slack = sums + 4 * kF32 * largest;
        out.check(std::log2(scale) == std::round(std::log2(scale)),
                  text("scale ", scale, " is no power of 2"));
        out.check(scale >= (largest - slack) / most && scale <= 2 * (largest + slack) / most,
                  text("scale ", scale, " of a row up to ", largest));
    }

    // The error of a code is half a step of its grid: e4m3 has 4 significant bits, e2m1 2.
    double e4m3(const std::vector<double>& want, const double* got, double scale, double sums,
                Comparison& out) const {
        double largest = args.amax_floor > 0 ? args.amax_floor : 1e-4;
        bool nan = false;
        for (const double v : want) {
            largest = std::fmax(largest, std::fabs(v));
            nan = nan || std::isnan(v);
        }
        const double exact = std::exp2(std::round(std::log2(scale)));  // w_out includes the scale, rounded
        if (!(nan && args.hadamard)) check_scale(exact, largest, 448, sums, out);
        for (size_t d = 0; d < want.size(); ++d)
            element(d, got[d] * exact, want[d],
                    std::fabs(want[d]) / 16 + exact * 0x1p-10 + 2 * sums + 4 * kF32 * largest, out);
        return exact;
    }
    void e2m1(const std::vector<double>& want, const double* got, const double* scales, double sums,
              Comparison& out) const {
        for (size_t first = 0; first < want.size(); first += kGroup) {
            double largest = 0;
            bool nan = false;
            for (size_t d = first; d < first + kGroup; ++d) {
                largest = std::fmax(largest, std::fabs(want[d]));
                nan = nan || std::isnan(want[d]);
            }
            const double scale = scales[first / kGroup];
            if (nan) {  // e2m1 has no NaN: the scale of the group is NaN
                out.check(std::isnan(scale), text("scale ", scale, " of a group with a NaN"));
                continue;
            }
            if (largest > 1e-30) check_scale(scale, largest, 6, sums, out);
            for (size_t d = first; d < first + kGroup; ++d)
                element(d, got[d] * scale, want[d],
                        std::fabs(want[d]) / 4 + scale / 4 + 2 * sums + 4 * kF32 * largest, out);
        }
    }
    void plain(const std::vector<double>& want, const double* got, double sums, Comparison& out) const {
        for (size_t d = 0; d < want.size(); ++d)
            element(d, got[d], want[d], rounding(args.q_out.dtype) * std::fabs(want[d]) + 2 * sums + 1e-37,
                    out);
    }

    std::vector<double> turned_, bound_;
};

}  // namespace

std::unique_ptr<Problem> make_quant_index_q(Stage, const Draw& draw) {
    return std::make_unique<QuantIndexQProblem>(draw);
}

}  // namespace smla::kit
