// The reference of attend against the oracle, in float and in double, and its refusals.
#include "support.h"

#include <cmath>

namespace attend_test {
namespace {

TEST(Reference, FloatAgreesWithTheOracle) {
    for (const auto& [format, width] : {std::pair<smla_format, int64_t>{SMLA_FP8_656, 576},
                                        {SMLA_FP8_584, 512},
                                        {SMLA_ROW_BF16, 576},
                                        {SMLA_FP8_512, 512}})
        for (const smla_precision precision : {SMLA_PRECISION_DEFAULT, SMLA_PRECISION_ROUNDED}) {
            Spec spec;
            spec.width = width;
            spec.heads = 3;
            spec.q = SMLA_F16;
            spec.precision = precision;
            spec.primary.format = format;
            spec.primary.k = 50;
            spec.primary.holes = 0.3;
            spec.primary.lengths = true;
            spec.sink = true;
            spec.base = precision ? SMLA_LSE_LOG2 : SMLA_LSE_LN;
            Problem problem(spec);
            AttendOp::check(problem.args);
            AttendOp::reference(problem.args, 0, AttendOp::tasks(problem.args));
            expect_close("cpu_generic_attend", problem, oracle(problem));
        }
}

TEST(Reference, DoubleIsExactToRounding) {
    Spec spec;
    spec.heads = 2;
    spec.width = 20;
    spec.value_width = 16;
    spec.primary.format = SMLA_ROW_F32;
    spec.primary.k = 30;
    spec.sink = true;
    spec.q = SMLA_F32;
    Problem problem(spec);
    const Expected expected = oracle(problem);
    std::vector<double> q(2 * 2 * 20), out(2 * 2 * 16), lse(4), max_logits(4);
    for (int64_t i = 0; i < 4; ++i)
        load_row(problem.args.q, address(problem.args.q, i / 2, i % 2), 20, &q[size_t(i) * 20]);
    smla_attend_args args = problem.args;
    args.q = make_tensor(q.data(), SMLA_F64, {2, 2, 20});
    args.out = make_tensor(out.data(), SMLA_F64, {2, 2, 16});
    args.lse = make_tensor(lse.data(), SMLA_F64, {2, 2});
    args.max_logits = make_tensor(max_logits.data(), SMLA_F64, {2, 2});
    AttendOp::check(args);
    AttendOp::reference(args, 0, 2);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected.out[i], 1e-13);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(lse[i], expected.lse[i], 1e-13);
    EXPECT_EQ(kernels(args, best_env()), std::vector<std::string>{"cpu_generic_attend"});
}

TEST(Reference, ByHand) {  // two keys of one value: logits 0 and ln 3, so weights 1/4 and 3/4
    Spec spec;
    spec.tokens = spec.heads = spec.width = spec.value_width = 1;
    spec.q = SMLA_F32;
    spec.primary = {.format = SMLA_ROW_F32, .k = 2, .page_tokens = 2, .pages = 1};
    Problem problem(spec);
    problem.args.softmax_scale = 1;
    *reinterpret_cast<float*>(problem.args.q.data) = std::log(3.f);
    float* cache = static_cast<float*>(problem.args.primary.cache.data);
    cache[0] = 0;
    cache[1] = 1;
    problem.primary_rows = {0, 1, 0};
    problem.args.primary.rows.data = problem.primary_rows.data();
    AttendOp::reference(problem.args, 0, 1);
    EXPECT_FLOAT_EQ(problem.value(0, 0, 0), 0.75f);
    EXPECT_FLOAT_EQ(problem.lse[0], std::log(4.f));
    EXPECT_FLOAT_EQ(problem.max_logits[0], std::log(3.f));
    problem.sink = {std::log(4.f)};  // doubles the denominator
    problem.args.sink = make_tensor(problem.sink.data(), SMLA_F32, {1});
    AttendOp::reference(problem.args, 0, 1);
    EXPECT_FLOAT_EQ(problem.value(0, 0, 0), 0.375f);
    EXPECT_FLOAT_EQ(problem.lse[0], std::log(4.f));
}

void expect_refused(const smla_attend_args& args, const char* field) {
    try {
        AttendOp::check(args);
        ADD_FAILURE() << "accepted a wrong " << field;
    } catch (const Error& error) {
        EXPECT_EQ(error.status, SMLA_INVALID_ARGUMENT);
        EXPECT_EQ(error.field, field) << error.what();
        EXPECT_FALSE(error.got.empty() || error.wanted.empty());
    }
}

TEST(Check, NamesTheField) {
    Spec spec;
    spec.primary.format = SMLA_FP8_656;
    spec.primary.k = 8;
    spec.primary.lengths = true;
    spec.sink = true;
    const Problem problem(spec);
    const smla_attend_args good = problem.args;
    AttendOp::check(good);
    smla_attend_args args = good;
    const auto refused = [&](const char* field) {
        expect_refused(args, field);
        args = good;
    };
    args.precision = 3;
    refused("args.precision");
    args.lse_base = -1;
    refused("args.lse_base");
    args.softmax_scale = 0;
    refused("args.softmax_scale");
    args.softmax_scale = INFINITY;
    refused("args.softmax_scale");
    args.q.dtype = SMLA_I32;
    refused("args.q.dtype");
    args.q.shape[1] = 257;
    refused("args.q.shape[1]");
    args.q.shape[1] = 0;
    refused("args.q.shape[1]");
    args.q.stride_elems[2] = 2;
    refused("args.q.stride_elems[2]");
    args.q.shape[2] = 512;
    refused("args.primary.cache.width");
    args.primary.cache.format = SMLA_FORMAT_NONE;
    refused("args.primary.cache.format");
    args.primary.cache.format = SMLA_INDEX_FP8_132;
    refused("args.primary.cache.format");
    args.primary.rows.dtype = SMLA_I64;
    refused("args.primary.rows.dtype");
    args.primary.rows.shape[0] = 3;
    refused("args.primary.rows.shape");
    args.primary.lengths.shape[0] = 1;
    refused("args.primary.lengths.shape");
    args.extra.cache = args.primary.cache;
    refused("args.extra.rows");
    args.out.dtype = SMLA_E4M3;
    refused("args.out.dtype");
    args.out.shape[1] = 15;
    refused("args.out.shape");
    args.out.shape[2] = 577;
    refused("args.out.shape[2]");
    args.out.stride_elems[2] = 2;
    refused("args.out.stride_elems[2]");
    args.sink.shape[0] = 3;
    refused("args.sink.shape");
    args.lse.dtype = SMLA_BF16;
    refused("args.lse.dtype");
    args.max_logits.shape[1] = 1;
    refused("args.max_logits.shape");
    args.q.dtype = SMLA_E4M3;  // one scale, above 0
    refused("args.q_scale");
}

TEST(Check, Fp8QueriesGiveBf16) {
    Spec spec;
    spec.q = SMLA_E4M3;
    spec.out = SMLA_F32;
    spec.primary.format = SMLA_FP8_576;
    spec.primary.k = 8;
    const Problem problem(spec);
    expect_refused(problem.args, "args.out.dtype");
}

}  // namespace
}  // namespace attend_test
