// Problems of norm, rope, inverse_rope and the four products.
#include "kit/problems/row.h"

#include <cmath>

namespace smla::kit {

namespace {

smla_dtype pick_float(Random& random) { return random.pick<smla_dtype>({SMLA_F32, SMLA_BF16, SMLA_F16}); }

// Puts a NaN into one token, which must affect that token's outputs and no others.
void maybe_poison_token(const Tensor& x, Random& random) {
    if (x.shape[0] * x.shape[1] * x.shape[2] == 0 || !random.chance(0.2)) return;
    set_value(x, random.between(0, x.shape[0] - 1), random.between(0, x.shape[1] - 1),
              random.between(0, x.shape[2] - 1), 0, std::nan(""));
}

class NormProblem : public ProblemOf<Stage::norm> {
public:
    explicit NormProblem(const Draw& draw) : ProblemOf(draw) {
        const int64_t tokens = random.chance(0.05) ? 0 : random.log_between(1, 20),
                      groups = random.log_between(1, 8), width = random.log_between(1, 2000);
        args.kind = random.pick<smla_norm_kind>({SMLA_NORM_RMS, SMLA_NORM_LAYER});
        args.eps = random.pick({1e-6, 1e-5, 1e-3});
        args.x = memory.tensor(pick_float(random), {tokens, groups, width}, Inner::any);
        fill_normal(args.x, random, random.pick({1e-4, 1., 100.}));
        maybe_poison_token(args.x, random);
        if (random.chance(0.7)) {
            args.weight = memory.tensor(pick_float(random), {width}, Inner::any);
            fill_normal(args.weight, random, 1);
        }
        if (args.kind == SMLA_NORM_LAYER && random.chance(0.7)) {
            args.bias = memory.tensor(pick_float(random), {width}, Inner::any);
            fill_normal(args.bias, random, 1);
        }
        const bool in_place = random.chance(0.3);
        args.out = in_place ? args.x : memory.tensor(pick_float(random), {tokens, groups, width}, Inner::any);
        description = text("T", tokens, " G", groups, " of ", width, " ", dtype_name(args.x.dtype),
                           args.kind == SMLA_NORM_RMS ? " rms" : " layer", in_place ? ", in place" : "");
        expect();
    }

    void compare(const std::string&, Comparison& out) const override {
        out.close("out", args.out, want_,
                  [&](size_t i) { return bound_[i] + stored(args.out.dtype, want_[i]); });
    }

    void expect() override {
        memory.allow_nothing();
        memory.allow(args.out);
        memory.remember();
        want_.clear();
        bound_.clear();
        const Doubles x(args.x), weight(args.weight), bias(args.bias);
        const auto width = size_t(args.x.shape[2]);
        for (size_t first = 0; first < x.values.size(); first += width) {
            BoundedRow row({x.values.data() + first, width});
            row.norm(*this, width, {args.kind == SMLA_NORM_LAYER, args.eps, weight.values, bias.values});
            want_.insert(want_.end(), row.want.begin(), row.want.end());
            bound_.insert(bound_.end(), row.bound.begin(), row.bound.end());
        }
    }

private:
    std::vector<double> want_, bound_;
};

template <Stage S>
class RopeProblem : public ProblemOf<S> {
public:
    explicit RopeProblem(const Draw& draw) : ProblemOf<S>(draw) {
        Random& random = this->random;
        HostileMemory& memory = this->memory;
        smla_rope_args& args = this->args;
        const int64_t tokens = random.chance(0.05) ? 0 : random.log_between(1, 20),
                      groups = random.log_between(1, 8), pairs = random.between(0, 40),
                      width = 2 * pairs + random.log_between(1, 200) - 1;
        args.style = random.pick<smla_rope_style>({SMLA_ROPE_INTERLEAVED, SMLA_ROPE_HALF});
        args.inverse = S == Stage::inverse_rope;
        args.first = int32_t(random.between(0, width - 2 * pairs));
        args.x = memory.tensor(pick_float(random), {tokens, groups, width});
        fill_normal(args.x, random, random.pick({0.01, 1., 100.}));
        maybe_poison_token(args.x, random);
        draw_rotation(*this, tokens, pairs, args.positions, args.frequencies);
        const std::string where = random.pick<const char*>({"in place", "whole rows", "rotated channels"});
        if (where != "in place")
            args.out = memory.tensor(pick_float(random),
                                     {tokens, groups, where == "whole rows" ? width : 2 * pairs});
        this->description = text("T", tokens, " G", groups, ", ", 2 * pairs, " of ", width, " ",
                                 dtype_name(args.x.dtype), ", ", where);
        expect();
    }

    void compare(const std::string&, Comparison& out) const override {
        const Tensor& got = present(this->args.out) ? this->args.out : this->args.x;
        out.close("out", got, want_, [&](size_t i) { return bound_[i] + stored(got.dtype, want_[i]); });
    }

    void expect() override {
        this->memory.allow_nothing();
        allow();
        this->memory.remember();
        want_.clear();
        bound_.clear();
        rotate();
    }

private:
    int64_t pairs() const { return this->args.frequencies.shape[0]; }
    void allow() {
        const Tensor& x = this->args.x;
        if (present(this->args.out)) return this->memory.allow(this->args.out);
        if (element_count(x) == 0) return;
        Tensor rotated = x;
        rotated.data = static_cast<char*>(x.data) + this->args.first * dtype_bits(x.dtype) / 8;
        rotated.shape[2] = 2 * pairs();
        this->memory.allow(rotated);
    }

    void rotate() {
        const smla_rope_args& args = this->args;
        const Doubles x(args.x), frequencies(args.frequencies);
        const int64_t width = args.x.shape[2], first = args.first, pairs = this->pairs();
        const bool short_rows = present(args.out) && args.out.shape[2] != width;
        const int64_t begin = short_rows ? first : 0, end = short_rows ? first + 2 * pairs : width;
        for (int64_t i = 0; i < args.x.shape[0] * args.x.shape[1]; ++i) {
            const auto position = double(load_int(args.positions, i / args.x.shape[1]));
            BoundedRow row({x.values.data() + i * width, size_t(width)});
            row.rotate({frequencies.values, first, args.style == SMLA_ROPE_HALF},
                       args.inverse ? -position : position);
            want_.insert(want_.end(), row.want.begin() + begin, row.want.begin() + end);
            bound_.insert(bound_.end(), row.bound.begin() + begin, row.bound.begin() + end);
        }
    }

    std::vector<double> want_, bound_;
};

// out[t,g,n] = sum_k x[t,g,k] * w[g,n,k], with the error of the sum in any order of a BLAS library.
template <Stage S>
class ProjectProblem : public ProblemOf<S> {
public:
    explicit ProjectProblem(const Draw& draw) : ProblemOf<S>(draw) {
        Random& random = this->random;
        HostileMemory& memory = this->memory;
        smla_project_args& args = this->args;
        // some weights are larger than the blocks in which kernels widen them
        const bool wide = random.chance(0.04) && !this->small(),
                   few = wide || (this->of_model() && random.chance(0.5)),
                   many_heads = !few && this->of_model() && !this->small() && random.chance(0.05);
        const int64_t tokens = random.chance(0.05) ? 0 : random.log_between(1, few ? 4 : 70),
                      groups = wide         ? 1
                               : many_heads ? random.between(100, 110)
                                            : random.log_between(1, 6);
        // rows are multiples of 16 bytes, as in models
        const size_t unit = this->of_model() && random.chance(0.7) ? 8 : 1;
        const auto inner = int64_t(round_up(
            size_t(wide ? random.between(2000, 3000) : random.log_between(1, many_heads ? 48 : 300)), unit));
        const auto outer = int64_t(round_up(
            size_t(wide ? random.between(90, 160) : random.log_between(1, many_heads ? 48 : 200)), unit));
        args.x = memory.tensor(pick_float(random), {tokens, groups, inner});
        const bool transposed = random.chance(0.4);
        args.w = memory.tensor(pick_float(random),
                               {groups, transposed ? inner : outer, transposed ? outer : inner});
        if (transposed) {
            std::swap(args.w.shape[1], args.w.shape[2]);
            std::swap(args.w.stride_elems[1], args.w.stride_elems[2]);
        }
        args.out = memory.tensor(pick_float(random), {tokens, groups, outer});
        if (this->unwanted()) return;
        fill_normal(args.x, random, random.pick({0.01, 1., 10.}));
        fill_normal(args.w, random, random.pick({0.02, 1.}));
        maybe_poison_token(args.x, random);
        this->description =
            text("T", tokens, " G", groups, ", ", inner, " to ", outer, ", x ", dtype_name(args.x.dtype),
                 ", w ", dtype_name(args.w.dtype), transposed ? " transposed" : "");
        expect();
    }

    void compare(const std::string&, Comparison& out) const override {
        const smla_project_args& args = this->args;
        const double sums = this->sum_error(args.x.shape[2]);
        out.close("out", args.out, want_,
                  [&](size_t i) { return sums * size_[i] + stored(args.out.dtype, want_[i]); });
    }

    void expect() override {
        const smla_project_args& args = this->args;
        this->memory.allow_nothing();
        this->memory.allow(args.out);
        this->memory.remember();
        want_.clear();
        size_.clear();
        const Doubles x(args.x), w(args.w);
        const int64_t groups = args.w.shape[0], outer = args.w.shape[1], inner = args.w.shape[2];
        for (int64_t row = 0; row < args.x.shape[0] * groups; ++row)
            for (int64_t n = 0; n < outer; ++n) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < inner; ++k) {
                    const double term = x.values[size_t(row * inner + k)] *
                                        w.values[size_t((row % groups * outer + n) * inner + k)];
                    sum += term;
                    size += std::fabs(term);
                }
                want_.push_back(sum);
                size_.push_back(size);
            }
    }

private:
    std::vector<double> want_, size_;
};

}  // namespace

std::unique_ptr<Problem> make_norm(Stage, const Draw& draw) { return std::make_unique<NormProblem>(draw); }
std::unique_ptr<Problem> make_rope(Stage stage, const Draw& draw) {
    if (stage == Stage::rope) return std::make_unique<RopeProblem<Stage::rope>>(draw);
    return std::make_unique<RopeProblem<Stage::inverse_rope>>(draw);
}
std::unique_ptr<Problem> make_project(Stage stage, const Draw& draw) {
    switch (stage) {
        case Stage::absorb: return std::make_unique<ProjectProblem<Stage::absorb>>(draw);
        case Stage::up_project: return std::make_unique<ProjectProblem<Stage::up_project>>(draw);
        case Stage::out_project: return std::make_unique<ProjectProblem<Stage::out_project>>(draw);
        default: return std::make_unique<ProjectProblem<Stage::project>>(draw);
    }
}

}  // namespace smla::kit
