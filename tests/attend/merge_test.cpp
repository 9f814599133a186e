// merge against sums in long double, and its edge cases.
#include "ops/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

namespace attend_test {
namespace {

using namespace smla;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class Real>
constexpr smla_dtype kDtype = sizeof(Real) == 8 ? SMLA_F64 : SMLA_F32;

template <class Real>
struct Merge {
    int64_t parts, tokens, heads, width;
    std::vector<Real> partials, lse, sink, out, lse_out;
    smla_merge_args args{};

    Merge(int64_t n, int64_t t, int64_t h, int64_t d) : parts(n), tokens(t), heads(h), width(d) {
        std::mt19937 rng(3);
        std::normal_distribution<double> normal;
        for (int64_t i = 0; i < n * t * h * d; ++i) partials.push_back(Real(normal(rng)));
        for (int64_t i = 0; i < n * t * h; ++i) lse.push_back(Real(5 * normal(rng)));
        for (int64_t i = 0; i < h; ++i) sink.push_back(Real(5 * normal(rng)));
        out.assign(size_t(t * h * d) + 1, Real(kNan));
        lse_out.assign(size_t(t * h) + 1, Real(kNan));
        partials.push_back(0);
        lse.push_back(0);
        args.struct_size = sizeof args;
        args.partials = make_tensor(partials.data(), kDtype<Real>, {n, t, h, d});
        args.lse = make_tensor(lse.data(), kDtype<Real>, {n, t, h});
        args.sink = make_tensor(sink.data(), kDtype<Real>, {h});
        args.out = make_tensor(out.data(), kDtype<Real>, {t, h, d});
        args.lse_out = make_tensor(lse_out.data(), kDtype<Real>, {t, h});
    }
    Real& part(int64_t i, int64_t t, int64_t h, int64_t d) {
        return partials[size_t(((i * tokens + t) * heads + h) * width + d)];
    }
    Real& lse_of(int64_t i, int64_t t, int64_t h) { return lse[size_t((i * tokens + t) * heads + h)]; }
    void run() {
        MergeOp::check(args);
        MergeOp::reference(args, 0, MergeOp::tasks(args));
        EXPECT_TRUE(std::isnan(out.back()) && std::isnan(lse_out.back()));
    }
};

template <class Real>
void check_sums(smla_lse_base base, double tolerance) {
    Merge<Real> m(4, 3, 2, 7);
    m.args.lse_base = base;
    m.run();
    const long double unit = base == SMLA_LSE_LOG2 ? std::numbers::ln2_v<long double> : 1.L;
    for (int64_t t = 0; t < 3; ++t)
        for (int64_t h = 0; h < 2; ++h) {
            long double sum = 0;
            for (int64_t i = 0; i < 4; ++i) sum += std::exp(unit * m.lse_of(i, t, h));
            EXPECT_NEAR(m.lse_out[size_t(t * 2 + h)], double(std::log(sum) / unit), 20 * tolerance);
            for (int64_t d = 0; d < 7; ++d) {
                long double want = 0;
                for (int64_t i = 0; i < 4; ++i)
                    want += std::exp(unit * m.lse_of(i, t, h)) * m.part(i, t, h, d);
                want /= sum + std::exp(static_cast<long double>(m.sink[size_t(h)]));
                EXPECT_NEAR(m.out[size_t((t * 2 + h) * 7 + d)], double(want), tolerance);
            }
        }
}

// A weight's error is that of its logit, of up to 15: 15 * 2^-24 = 1e-6 in float, 2e-15 in double.
TEST(Merge, SumsInBothBases) {
    for (const smla_lse_base base : {SMLA_LSE_LN, SMLA_LSE_LOG2}) {
        check_sums<float>(base, 5e-6);
        check_sums<double>(base, 1e-14);
    }
}

// sgl#22688; NaN in an empty part must not leak. FlashMLA and FlashAttention-2 mark it with +inf.
template <class Real>
void check_empty_part(smla_lse_base base, double mark) {
    Merge<Real> with(3, 2, 2, 5), without(2, 2, 2, 5);
    with.args.lse_base = without.args.lse_base = base;
    for (int64_t t = 0; t < 2; ++t)
        for (int64_t h = 0; h < 2; ++h) {
            with.lse_of(1, t, h) = Real(mark);
            for (const int64_t i : {0, 1}) without.lse_of(i, t, h) = with.lse_of(2 * i, t, h);
            for (int64_t d = 0; d < 5; ++d) {
                with.part(1, t, h, d) = Real(kNan);
                for (const int64_t i : {0, 1}) without.part(i, t, h, d) = with.part(2 * i, t, h, d);
            }
        }
    without.sink = with.sink;
    with.run();
    without.run();
    with.out.pop_back();
    without.out.pop_back();
    EXPECT_EQ(with.out, without.out) << mark;
    with.lse_out.pop_back();
    without.lse_out.pop_back();
    EXPECT_EQ(with.lse_out, without.lse_out) << mark;
}

TEST(Merge, AnEmptyPartWeighsExactlyNothing) {
    for (const smla_lse_base base : {SMLA_LSE_LN, SMLA_LSE_LOG2})
        for (const double mark : {-kInfinity, kInfinity}) {
            check_empty_part<float>(base, mark);
            check_empty_part<double>(base, mark);
        }
}

// 3e38 is no mark: it is the largest lse here, and all of the weight.
TEST(Merge, AFiniteLseIsNeverAMark) {
    for (const float huge : {3e38f, -3e38f}) {
        Merge<float> m(2, 1, 1, 4);
        m.args.sink = {};
        m.lse_of(1, 0, 0) = huge;
        m.run();
        for (int64_t d = 0; d < 4; ++d) EXPECT_EQ(m.out[size_t(d)], m.part(huge > 0, 0, 0, d));
        EXPECT_EQ(m.lse_out[0], m.lse_of(huge > 0, 0, 0));
    }
}

TEST(Merge, OnePartWithoutASinkIsTheIdentity) {
    Merge<float> m(2, 1, 1, 4);
    m.args.sink = {};
    m.lse_of(0, 0, 0) = -float(kInfinity);
    m.run();
    for (int64_t d = 0; d < 4; ++d) EXPECT_EQ(m.out[size_t(d)], m.part(1, 0, 0, d));
    EXPECT_EQ(m.lse_out[0], m.lse_of(1, 0, 0));
}

TEST(Merge, NoPartSawAKey) {  // whatever the sink
    for (const double sink : {0., 1e4, -1e4, kInfinity, -kInfinity}) {
        Merge<float> m(3, 2, 1, 4);
        m.sink[0] = float(sink);
        m.partials.assign(m.partials.size(), float(kNan));
        for (size_t i = 0; i < m.lse.size(); ++i) m.lse[i] = float(i % 2 ? kInfinity : -kInfinity);
        m.run();
        for (size_t i = 0; i < 8; ++i) EXPECT_EQ(m.out[i], 0.f);
        EXPECT_EQ(m.lse_out[0], -float(kInfinity));
    }
    Merge<float> none(0, 2, 1, 4);
    none.run();
    EXPECT_EQ(none.out[0], 0.f);
    EXPECT_EQ(none.lse_out[1], -float(kInfinity));
}

TEST(Merge, SinksFarFromTheLogits) {
    for (const auto& [sink, share] :
         {std::pair<double, double>{kInfinity, 0}, {1e4, 0}, {-1e4, 1}, {-kInfinity, 1}}) {
        Merge<float> m(2, 1, 1, 4), plain(2, 1, 1, 4);
        m.sink[0] = float(sink);
        plain.args.sink = {};
        m.run();
        plain.run();
        for (size_t d = 0; d < 4; ++d) EXPECT_FLOAT_EQ(m.out[d], float(share) * plain.out[d]);
        EXPECT_EQ(m.lse_out[0], plain.lse_out[0]) << "the sink is not in it";
    }
}

TEST(Merge, ANanOfAPartThatCountsIsSeen) {
    Merge<float> m(3, 2, 1, 4);
    m.part(2, 0, 0, 1) = float(kNan);
    m.run();
    EXPECT_TRUE(std::isnan(m.out[1]));
    EXPECT_FALSE(std::isnan(m.out[0]) || std::isnan(m.out[5]));
    Merge<float> bad_lse(3, 2, 1, 4);
    bad_lse.lse_of(0, 1, 0) = float(kNan);
    bad_lse.run();
    EXPECT_TRUE(std::isnan(bad_lse.out[4]) && std::isnan(bad_lse.lse_out[1]));
    EXPECT_FALSE(std::isnan(bad_lse.out[0]));
}

TEST(Merge, NarrowAndStridedPartials) {
    Merge<float> m(3, 2, 2, 6);
    std::vector<uint16_t> bf16(m.partials.size() * 2, 0xFFFF), out(size_t(2 * 2 * 6));
    for (size_t i = 0; i < m.partials.size(); ++i) {
        bf16[2 * i] = f32_to_bf16(m.partials[i]);
        m.partials[i] = bf16_to_f32(bf16[2 * i]);
    }
    m.run();
    smla_merge_args args = m.args;
    args.partials = make_tensor(bf16.data(), SMLA_BF16, {3, 2, 2, 6});
    for (int64_t& stride : args.partials.stride_elems) stride *= 2;
    args.out = make_tensor(out.data(), SMLA_BF16, {2, 2, 6});
    MergeOp::check(args);
    MergeOp::reference(args, 0, 2);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], f32_to_bf16(m.out[i]));
}

void expect_refused(const smla_merge_args& args, const char* field) {
    try {
        MergeOp::check(args);
        ADD_FAILURE() << "accepted a wrong " << field;
    } catch (const Error& error) {
        EXPECT_EQ(error.status, SMLA_INVALID_ARGUMENT);
        EXPECT_EQ(error.field, field);
    }
}

TEST(Merge, RefusesWrongArguments) {
    const Merge<float> m(2, 2, 2, 3);
    smla_merge_args args = m.args;
    args.lse_base = 2;
    expect_refused(args, "args.lse_base");
    args = m.args;
    args.partials.dtype = SMLA_E4M3;
    expect_refused(args, "args.partials.dtype");
    args = m.args;
    args.partials.ndim = 3;
    expect_refused(args, "args.partials.shape");
    args = m.args;
    args.lse.shape[0] = 1;
    expect_refused(args, "args.lse.shape");
    args = m.args;
    args.lse.dtype = SMLA_F64;
    expect_refused(args, "args.lse.dtype");
    args = m.args;
    args.sink.shape[0] = 1;
    expect_refused(args, "args.sink.shape");
    args = m.args;
    args.out.shape[2] = 2;
    expect_refused(args, "args.out.shape");
    args = m.args;
    args.out.data = nullptr;
    expect_refused(args, "args.out.data");
    args = m.args;
    args.lse_out.shape[1] = 3;
    expect_refused(args, "args.lse_out.shape");
}

}  // namespace
}  // namespace attend_test
