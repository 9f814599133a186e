#include "index/cases.h"
#include "index/expected.h"

#include <cmath>
#include <limits>

namespace smla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Env with(smla_isa isa, const std::string& kernel, Runner& runner) {
    runner.env.isa = isa;
    runner.demand<Stage::score>(kernel);
    return runner.env;
}

std::vector<ScoreShape> shapes() {
    std::vector<ScoreShape> out;
    for (const smla_format format : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68, SMLA_ROW_BF16, SMLA_ROW_F32})
        for (const smla_dtype q : {SMLA_E4M3, SMLA_E2M1, SMLA_BF16, SMLA_F32})
            for (const int64_t heads : {1, 7, 16, 33, 64, 100}) {
                ScoreShape shape;
                shape.format = format;
                shape.q = q;
                shape.heads = heads;
                shape.columns = 61;
                shape.page_tokens = heads == 7 ? 5 : 64;
                shape.tokens = heads == 64 ? 3 : 1;
                shape.seed = uint32_t(out.size());
                shape.odd_scales = format == SMLA_INDEX_FP8_132 && heads != 16;
                if (format == SMLA_ROW_BF16 || format == SMLA_ROW_F32)
                    shape.width = q == SMLA_E2M1 ? 32 : heads == 7 ? 75 : 40;
                out.push_back(shape);
            }
    return out;
}

TEST(Score, ExactInputsGiveTheSameBitsOnEveryKernel) {
    for (ScoreShape shape : shapes()) {
        shape.exact = true;
        shape.odd_scales = false;
        const ScoreCase test(shape);
        const std::vector<float> want = reference_score(test);
        for (int64_t t = 0; t < shape.tokens; ++t)
            for (int64_t j = 0; j < shape.columns; ++j)
                ASSERT_EQ(double(want[size_t(t * shape.columns + j)]),
                          logit_of(test, t, test.row(0, j)).logit);
        const smla_score_args args = test.args();
        smla_score_args sized = args;
        sized.logits = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {shape.tokens, shape.columns});
        for (const std::string& kernel : runnable_kernels<Stage::score>(sized)) {
            Runner runner;
            const std::vector<float> got = run_score(test, with(best_isa(), kernel, runner));
            EXPECT_TRUE(same_bits(got, want))
                << kernel << " H " << shape.heads << " D " << shape.width << " "
                << find_format(shape.format)->name << ": " << first_difference(got, want, shape.columns);
        }
    }
}

TEST(Score, LogitsOfBf16AreThoseOfF32Rounded) {
    for (const ScoreShape& shape : shapes()) {
        ScoreCase test(shape);
        for (int64_t t = 0; t < shape.tokens; ++t) test.starts[size_t(t)] = int32_t(5 * t);
        smla_score_args sized = test.args();
        sized.logits = make_tensor(static_cast<void*>(nullptr), SMLA_BF16, {shape.tokens, shape.columns});
        std::vector<std::string> kernels = runnable_kernels<Stage::score>(sized);
        kernels.emplace_back();  // the reference
        for (const std::string& kernel : kernels)
            for (const bool fill : {false, true}) {
                Runner runner;
                Env env = kernel.empty() ? runner.env : with(best_isa(), kernel, runner);
                if (kernel.empty()) env.engine = SMLA_ENGINE_REFERENCE;
                const std::vector<float> want = run_score(test, env, fill);
                const std::vector<uint16_t> got = run_score_to_bf16(test, env, fill);
                for (size_t i = 0; i < want.size(); ++i)
                    ASSERT_EQ(got[i], f32_to_bf16(want[i])) << kernel << " H " << shape.heads << " " << i;
            }
    }
}

TEST(Score, EveryKernelIsWithinTheRoundingBound) {
    for (const ScoreShape& shape : shapes()) {
        const ScoreCase test(shape);
        std::vector<Want> want;
        for (int64_t t = 0; t < shape.tokens; ++t)
            for (int64_t j = 0; j < shape.columns; ++j) want.push_back(logit_of(test, t, test.row(0, j)));
        smla_score_args sized = test.args();
        sized.logits = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {shape.tokens, shape.columns});
        for (const std::string& kernel : runnable_kernels<Stage::score>(sized)) {
            Runner runner;
            const std::vector<float> got = run_score(test, with(best_isa(), kernel, runner));
            for (size_t i = 0; i < want.size(); ++i)
                ASSERT_LE(std::fabs(double(got[i]) - want[i].logit), want[i].bound)
                    << kernel << " H " << shape.heads << " D " << shape.width << " entry " << i;
        }
    }
}

TEST(Score, ScalarKernelHasTheBitsOfTheReference) {
    for (const ScoreShape& shape : shapes()) {
        const ScoreCase test(shape);
        Runner runner;
        const std::vector<float> got = run_score(test, with(SMLA_ISA_SCALAR, "cpu_scalar_f32_score", runner));
        EXPECT_TRUE(same_bits(got, reference_score(test)));
    }
}

TEST(Score, DoubleArgumentsAreScoredInDouble) {
    const int64_t heads = 3, width = 20, columns = 9;
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    std::vector<double> q(size_t(heads * width)), keys(size_t(columns * width)), w(size_t(heads), 0.0),
        logits(static_cast<size_t>(columns));
    for (auto* list : {&q, &keys, &w})
        for (double& value : *list) value = normal(random);
    smla_score_args args{};
    const int32_t end = columns;
    args.q = make_tensor(q.data(), SMLA_F64, {1, heads, width});
    args.w = make_tensor(w.data(), SMLA_F64, {1, heads});
    args.keys.format = SMLA_ROW_F64;
    args.keys.width = int32_t(width);
    args.keys.page_tokens = int32_t(columns);
    args.keys.pages = 1;
    args.keys.data = keys.data();
    args.ends = make_tensor(&end, SMLA_I32, {1});
    args.logits = make_tensor(logits.data(), SMLA_F64, {1, columns});
    Runner runner;
    EXPECT_STREQ(run_stage<Stage::score>(args, runner.env), "cpu_generic_score");
    for (int64_t j = 0; j < columns; ++j) {
        double want = 0;
        for (int64_t h = 0; h < heads; ++h) {
            double dot = 0;
            for (int64_t d = 0; d < width; ++d) dot += q[size_t(h * width + d)] * keys[size_t(j * width + d)];
            want += w[size_t(h)] * std::max(0.0, dot);
        }
        EXPECT_NEAR(logits[size_t(j)], want, 1e-13);  // 60 terms of order 1, u = 1.1e-16
    }
}

TEST(Score, NanReachesItsColumnAndNothingElse) {
    for (const smla_format format : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68, SMLA_ROW_BF16, SMLA_ROW_F32}) {
        ScoreShape shape;
        shape.format = format;
        shape.columns = 70;
        shape.heads = 21;
        const ScoreCase clean(shape);
        ScoreCase test(shape);
        std::vector<float> key(size_t(shape.width));
        test.keys().decode(test.row(0, 33), key.data());
        key[5] = std::nanf("");
        test.keys().encode(test.row(0, 33), key.data());
        for (const smla_isa isa : isas_here()) {
            Runner runner(isa);
            std::vector<float> want = run_score(clean, runner.env), got = run_score(test, runner.env);
            for (int64_t t = 0; t < shape.tokens; ++t) {
                EXPECT_TRUE(std::isnan(got[size_t(t * shape.columns + 33)]))
                    << isa_name(isa) << " relu hid a NaN";
                got[size_t(t * shape.columns + 33)] = want[size_t(t * shape.columns + 33)];
            }
            EXPECT_TRUE(same_bits(got, want)) << isa_name(isa);
        }
    }
}

TEST(Score, InfiniteKeysDoNotMeetPaddedHeads) {
    ScoreShape shape;
    shape.format = SMLA_ROW_BF16;
    shape.q = SMLA_BF16;
    shape.heads = 5;
    shape.columns = 6;
    shape.tokens = 1;
    ScoreCase test(shape);
    std::vector<float> key(size_t(shape.width), 0.f);
    key[0] = kInfinity;
    test.keys().encode(test.row(0, 2), key.data());
    const std::vector<float> want = reference_score(test);
    ASSERT_FALSE(std::isnan(want[2]));
    for (const smla_isa isa : isas_here()) {
        Runner runner(isa);
        EXPECT_EQ(run_score(test, runner.env)[2], want[2]) << isa_name(isa);
    }
}

TEST(Score, KernelsRefuseInWords) {
    const ScoreCase test(ScoreShape{});
    Runner runner(SMLA_ISA_SCALAR);
    const auto verdicts = explain_stage<Stage::score>(test.args(), runner.env);
    ASSERT_GE(verdicts.size(), 2u);
    for (const Verdict& verdict : verdicts)
        if (verdict.kernel.find("avx") != std::string::npos) {
            EXPECT_NE(verdict.refusal.find("the context uses scalar"), std::string::npos) << verdict.refusal;
        }
    runner.demand<Stage::score>("cpu_no_such_kernel");
    EXPECT_THROW(run_score(test, runner.env), Error);
}

std::string refusal(const ScoreCase& test, void (*change)(smla_score_args&)) {
    std::vector<float> logits(size_t(test.shape.tokens * test.shape.columns), kCanary);
    smla_score_args args = test.args();
    args.logits = make_tensor(logits.data(), SMLA_F32, {test.shape.tokens, test.shape.columns});
    change(args);
    std::string field;
    try {
        run_stage<Stage::score>(args, Runner().env);
    } catch (const Error& error) {
        field = error.field;
    }
    for (const float each : logits) EXPECT_EQ(each, kCanary) << "a refused call wrote";
    return field;
}

TEST(Score, BadArgumentsAreRefusedByName) {
    const ScoreCase test(ScoreShape{});
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.fill = 2; }), "args.fill");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.q.stride_elems[2] = 2; }), "args.q.stride_elems[2]");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.q.dtype = SMLA_F16; }), "args.q.dtype");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.w.dtype = SMLA_BF16; }), "args.w.dtype");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.w.shape[1] = 3; }), "args.w.shape");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.q_scales = a.w; }), "args.q_scales");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.keys.format = SMLA_FP8_656; }), "args.keys.format");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.keys.page_stride_bytes = 8; }),
              "args.keys.page_stride_bytes");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.request_of_token = {}; }), "args.request_of_token");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.block_table = {}; }), "args.request_of_token");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.ends = {}; }), "args.ends");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.starts.dtype = SMLA_I64; }), "args.starts.dtype");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.logits = {}; }), "args.logits");
    EXPECT_EQ(refusal(test, [](smla_score_args& a) { a.logits.dtype = SMLA_F16; }), "args.logits.dtype");
}

}  // namespace
}  // namespace smla::test
