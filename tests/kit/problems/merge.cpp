// Problems of merge.
#include "kit/problem.h"

#include <cmath>

namespace smla::kit {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class MergeProblem : public ProblemOf<Stage::merge> {
public:
    explicit MergeProblem(const Draw& draw) : ProblemOf(draw) {
        const int64_t parts = random.between(random.chance(0.03) ? 0 : 1, 7), tokens = random.between(0, 4),
                      heads = random.log_between(1, 64), width = random.log_between(1, 600);
        const auto dtype = random.pick<smla_dtype>({SMLA_F32, SMLA_F32, SMLA_BF16, SMLA_F16});
        args.lse_base = random.pick<smla_lse_base>({SMLA_LSE_LN, SMLA_LSE_LOG2});
        args.partials = memory.tensor(dtype, {parts, tokens, heads, width}, Inner::any);
        args.lse = memory.tensor(SMLA_F32, {parts, tokens, heads}, Inner::any);
        args.out = memory.tensor(random.pick<smla_dtype>({SMLA_F32, SMLA_BF16, SMLA_F16}),
                                 {tokens, heads, width}, Inner::any);
        if (random.chance(0.7)) args.lse_out = memory.tensor(SMLA_F32, {tokens, heads}, Inner::any);
        if (random.chance(0.5)) {
            args.sink = memory.tensor(SMLA_F32, {heads}, Inner::any);
            fill_normal(args.sink, random, random.pick({1., 30.}));
            for (int64_t h = 0; h < heads; ++h)
                if (random.chance(0.1))
                    set_value(args.sink, h, 0, 0, 0, random.chance(0.5) ? kInfinity : -kInfinity);
        }
        fill_parts();
        description = text(parts, " parts of ", dtype_name(dtype), ", T", tokens, " H", heads, " ", width,
                           " out ", dtype_name(args.out.dtype), present(args.sink) ? ", sink" : "");
        expect();
    }

    // A weight is exp(lse_i - peak). The error of the argument comes from the roundings of both numbers, of
    // their difference and of the change of base; the error of the exponential is 2^-22. The sum over the
    // parts, the division and the rounding to the type of out follow. magnitude = sum_i weight_i |partial_i|.
    void compare(const std::string&, Comparison& out) const override {
        const int64_t parts = args.partials.shape[0], width = args.out.shape[2];
        const auto weight = [&](size_t row) {
            const double sink = present(args.sink) ? sink_.values[row % size_t(args.out.shape[1])] : 0;
            const double exponents = 4 * largest_[row] + (std::isfinite(sink) ? std::fabs(sink) : 0);
            return 0x1p-20 + kF32 * exponents + sum_error(parts);
        };
        out.close("out", args.out, out_.values, [&](size_t i) {
            return weight(i / size_t(width)) * magnitude_.values[i] +
                   rounding(args.out.dtype) * std::fabs(out_.values[i]) + smallest_step(args.out.dtype);
        });
        out.close("lse_out", args.lse_out, lse_.values,
                  [&](size_t i) { return 2 * weight(i) + 4 * kF32 * std::fabs(lse_.values[i]); });
    }

    void expect() override {
        memory.allow_nothing();
        memory.allow(args.out);
        memory.allow(args.lse_out);
        memory.remember();
        find_largest();
        merge();
    }

private:
    void fill_parts() {
        const double spread = random.pick({0., 1., 20., 200.}), empty = random.pick({0., 0.2, 0.9});
        const Tensor& lse = args.lse;
        each_index(lse, [&](int64_t i, int64_t t, int64_t h, int64_t) {
            const bool none = random.chance(empty);
            const double value = none ? random.pick({-kInfinity, kInfinity}) : spread * random.normal();
            set_value(lse, i, t, h, 0, value);
            if (none) return;  // contents of an empty part are never read: they stay NaN
            for (int64_t d = 0; d < args.partials.shape[3]; ++d)
                set_value(args.partials, i, t, h, d, random.normal());
        });
    }
    void find_largest() {
        const Doubles lse(args.lse);
        largest_.assign(size_t(args.lse.shape[1] * args.lse.shape[2]), 0);
        for (size_t i = 0; i < lse.values.size(); ++i)
            if (double& largest = largest_[i % largest_.size()]; std::isfinite(lse.values[i]))
                largest = std::max(largest, std::fabs(lse.values[i]));
    }
    void merge() {
        Doubles partials(args.partials);
        const Doubles lse(args.lse);
        sink_ = Doubles(args.sink);
        out_ = Doubles::like(args.out);
        magnitude_ = Doubles::like(args.out);
        lse_ = Doubles::like(args.lse_out);
        smla_merge_args exact = args;
        exact.partials = partials.tensor();
        exact.lse = lse.tensor();
        exact.sink = sink_.tensor();
        exact.out = out_.tensor();
        exact.lse_out = lse_.tensor();
        MergeOp::check(exact);
        MergeOp::reference(exact, 0, MergeOp::tasks(exact));
        partials.make_absolute();
        exact.out = magnitude_.tensor();
        MergeOp::reference(exact, 0, MergeOp::tasks(exact));
    }

    Doubles sink_, out_, magnitude_, lse_;
    std::vector<double> largest_;  // largest |lse| of the parts of each (token, head)
};

}  // namespace

std::unique_ptr<Problem> make_merge(Stage, const Draw& draw) { return std::make_unique<MergeProblem>(draw); }

}  // namespace smla::kit
