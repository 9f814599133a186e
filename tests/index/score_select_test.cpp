#include "index/cases.h"

#include "kit/refused.h"
#include "ops/score_select/score_select.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace smla::test {
namespace {

// score and select, one after the other, on the same machine with the same kernels.
Selection pair(const ScoreCase& test, int64_t k, const Env& env, bool relative = false) {
    const std::vector<float> logits = run_score(test, env);
    const Tensor scores = make_tensor(logits.data(), SMLA_F32, {test.shape.tokens, test.shape.columns});
    return run_select(scores, k, env, &test.starts, &test.ends, relative);
}

std::string kernel_of(const ScoreCase& test, int64_t k, const Env& env) {
    smla_score_select_args args{};
    args.columns = int32_t(test.shape.columns);
    args.score = test.args();
    std::vector<int32_t> indices(size_t(test.shape.tokens * k));
    args.select.indices = make_tensor(indices.data(), SMLA_I32, {test.shape.tokens, k});
    return run_stage<Stage::score_select>(args, env);
}

TEST(ScoreSelect, IsThePairBitForBitOnEveryKernel) {
    struct Kind {
        smla_format format;
        smla_dtype q;
    };
    for (const Kind kind : {Kind{SMLA_INDEX_FP8_132, SMLA_E4M3}, Kind{SMLA_INDEX_MXFP4_68, SMLA_E2M1},
                            Kind{SMLA_ROW_BF16, SMLA_BF16}, Kind{SMLA_ROW_F32, SMLA_F32}})
        for (const int64_t k : {1, 200, 700}) {
            ScoreShape shape;
            shape.format = kind.format;
            shape.q = kind.q;
            shape.heads = 17;
            shape.columns = 650;
            shape.tokens = 4;
            shape.requests = 2;
            shape.seed = uint32_t(k);
            ScoreCase test(shape);
            test.starts = {0, 100, 649, 20};
            test.ends = {650, 400, 650, 20};
            smla_score_args sized = test.args();
            sized.logits = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {shape.tokens, shape.columns});
            for (const std::string& kernel : runnable_kernels<Stage::score>(sized))
                for (const int threads : {1, 3}) {
                    Runner runner(best_isa(), threads);
                    runner.demand<Stage::score>(kernel);
                    EXPECT_EQ(kernel_of(test, k, runner.env), kernel == "cpu_generic_score"
                                                                  ? "cpu_generic_score_select"
                                                                  : "cpu_streamed_score_select");
                    for (const bool relative : {false, true})
                        EXPECT_TRUE(run_score_select(test, k, runner.env, relative) ==
                                    pair(test, k, runner.env, relative))
                            << kernel << " k " << k << " threads " << threads;
                }
        }
}

TEST(ScoreSelect, EveryIsaIsThePair) {
    ScoreShape shape;
    shape.tokens = 19;
    shape.requests = 4;
    shape.heads = 16;
    shape.columns = 400;
    ScoreCase test(shape);
    for (size_t t = 0; t < test.ends.size(); ++t) test.ends[t] = int32_t(21 * t + 3);
    for (const smla_isa isa : isas_here()) {
        const Runner runner(isa, 2);
        EXPECT_TRUE(run_score_select(test, 64, runner.env) == pair(test, 64, runner.env)) << isa_name(isa);
    }
}

// Keys along one direction, scaled so that every score is above the one before: each column displaces a
// winner, and every buffer fills and is cut again and again.
ScoreCase& with_slope(ScoreCase& test, bool ascending) {
    const int64_t width = test.shape.width;
    std::vector<float> key(static_cast<size_t>(width));
    const CacheView view = test.keys();
    for (int64_t j = 0; j < test.shape.columns; ++j) {
        for (int64_t d = 0; d < width; ++d)
            key[size_t(d)] = float(test.q[0][size_t(d)]) * float(ascending ? j + 1 : test.shape.columns - j);
        view.encode(test.row(0, j), key.data());
    }
    for (float& w : test.w) w = 1;
    return test;
}

TEST(ScoreSelect, AscendingScoresFillEveryBuffer) {
    ScoreShape shape;
    shape.format = SMLA_ROW_F32;
    shape.q = SMLA_F32;
    shape.heads = 1;
    shape.width = 16;
    shape.tokens = 1;
    shape.columns = 30000;  // with k = 100 a buffer holds 6,244
    for (const bool ascending : {true, false}) {
        ScoreCase test(shape);
        with_slope(test, ascending);
        const Runner one;
        const Selection want = pair(test, 100, one.env);
        for (int32_t i = 0; i < 100; ++i) ASSERT_EQ(want.indices[size_t(i)], ascending ? 29900 + i : i);
        for (const int threads : {1, 2, 4})
            EXPECT_TRUE(run_score_select(test, 100, Runner(best_isa(), threads).env) == want)
                << threads << " threads";
        const Runner scalar(SMLA_ISA_SCALAR);
        EXPECT_TRUE(run_score_select(test, 100, scalar.env) == pair(test, 100, scalar.env));
    }
}

// Slices of 2048 columns or more keep k each, and what they kept fills the buffer that merges them.
TEST(ScoreSelect, SlicesTogetherFillTheBufferThatMergesThem) {
    ScoreShape shape;
    shape.format = SMLA_ROW_F32;
    shape.q = SMLA_F32;
    shape.heads = 1;
    shape.width = 16;
    shape.tokens = 1;
    shape.columns = 20000;  // 4 threads: 9 slices; the buffer holds 8,192
    ScoreCase test(shape);
    test.w[0] = 1;  // so that the best lie everywhere
    const Selection want = pair(test, 2048, Runner().env);
    for (const int threads : {1, 2, 4})
        EXPECT_TRUE(run_score_select(test, 2048, Runner(best_isa(), threads).env) == want)
            << threads << " threads";
}

// T-46 through the fused stage: all logits equal, zero, or NaN.
TEST(ScoreSelect, TiesGoToTheLowestColumns) {
    ScoreShape shape;
    shape.tokens = 2;
    shape.columns = 9000;
    shape.heads = 4;
    ScoreCase test(shape);
    std::fill(test.w.begin(), test.w.begin() + 4, 0.f);          // row 0: every logit 0
    std::fill(test.w.begin() + 4, test.w.end(), std::nanf(""));  // row 1: every logit NaN
    for (const int threads : {1, 4}) {
        const Selection got = run_score_select(test, 2048, Runner(best_isa(), threads).env);
        for (int32_t i = 0; i < 2048; ++i) {
            ASSERT_EQ(got.indices[size_t(i)], i);
            ASSERT_EQ(got.indices[size_t(2048 + i)], i);
        }
        EXPECT_TRUE(got == pair(test, 2048, Runner().env));
    }
}

// T-47: requests without keys, and rows without columns, are results too.
TEST(ScoreSelect, EmptyRowsSelectNothing) {
    ScoreShape shape;
    shape.tokens = 5;
    shape.columns = 100;
    ScoreCase test(shape);
    test.starts = {0, 50, 100, 0, 0};
    test.ends = {0, 20, 100, -3, 100};
    test.requests = {0, 0, 0, 0, -1};  // the last one has no request: 100 holes, which are ordinary -inf
    const Selection got = run_score_select(test, 8, Runner(best_isa(), 2).env);
    EXPECT_EQ(got.counts, (std::vector<int32_t>{0, 0, 0, 0, 8}));
    for (size_t i = 0; i < 40; ++i) EXPECT_EQ(got.indices[i], i < 32 ? -1 : int32_t(i) - 32);
    EXPECT_TRUE(got == pair(test, 8, Runner().env));
    EXPECT_EQ(run_score_select(test, 0, Runner().env).counts, std::vector<int32_t>(5, 0));
    shape.tokens = 0;
    EXPECT_TRUE(run_score_select(ScoreCase(shape), 8, Runner().env).indices.empty());
    shape.tokens = 2;
    shape.columns = 0;
    EXPECT_EQ(run_score_select(ScoreCase(shape), 3, Runner().env).indices, std::vector<int32_t>(6, -1));
}

TEST(ScoreSelect, ScratchIsBoundedAndItsSizeChangesNothing) {
    ScoreShape shape;
    shape.tokens = 20;
    shape.columns = 5000;
    shape.heads = 8;
    const ScoreCase test(shape);
    const Selection want = pair(test, 512, Runner().env);
    smla_score_select_args args{};
    args.score = test.args();
    args.select.indices = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {shape.tokens, 512});
    for (const int threads : {1, 3}) {
        args.columns = 5000;
        const size_t most = stage_workspace<Stage::score_select>(args, Runner(best_isa(), threads).env, 0);
        const size_t least = stage_workspace<Stage::score_select>(args, Runner(best_isa(), threads).env, 1);
        EXPECT_LT(least, most);
        for (const size_t bytes : {most, (most + least) / 2, least})
            EXPECT_TRUE(run_score_select(test, 512, Runner(best_isa(), threads, bytes).env) == want) << bytes;
        EXPECT_THROW(run_score_select(test, 512, Runner(best_isa(), threads, least - 64).env), Error);
        args.columns = 1 << 30;  // a thousand million columns need no more than ten thousand
        EXPECT_LE(stage_workspace<Stage::score_select>(args, Runner(best_isa(), threads).env, 0), 2 * most);
    }
}

// A workspace sized with the largest step serves every smaller one as well as one of its own.
TEST(ScoreSelect, MoreTokensTakeNoLessScratch) {
    ScoreShape shape;
    shape.heads = 8;
    const ScoreCase test(shape);
    smla_score_select_args args{};
    args.score = test.args();
    args.columns = 131072;
    args.select.indices = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {1, 512});
    for (const int threads : {1, 3, 16}) {
        const Runner runner(best_isa(), threads);
        const size_t all = stage_workspace<Stage::score_select>(args, runner.env, 0);
        for (const size_t budget : {size_t(0), size_t(1), all / 4, all, 4 * all}) {
            size_t before = 0;
            for (int64_t tokens = 0; tokens <= 600; ++tokens) {
                args.score.q.shape[0] = args.select.indices.shape[0] = tokens;
                const size_t bytes = stage_workspace<Stage::score_select>(args, runner.env, budget);
                ASSERT_GE(bytes, before) << tokens << " tokens, budget " << budget << ", threads " << threads;
                before = bytes;
            }
        }
    }
}

TEST(ScoreSelect, NoTokensTakeNoMemoryForLogits) {
    const ScoreCase test(ScoreShape{});
    smla_score_select_args args{};
    args.score = test.args();
    args.columns = INT32_MAX;
    ScoreSelectOp::reference(args, 0, 0);  // 16 GiB would be for one token
}

TEST(ScoreSelect, TheGenericKernelServesDoubles) {
    const std::vector<double> q = {1, 2}, keys = {1, 0, 0, 1, 1, 1}, w = {1};
    const int32_t end = 3;
    int32_t indices[2] = {};
    smla_score_select_args args{};
    args.columns = 3;
    args.score.q = make_tensor(q.data(), SMLA_F64, {1, 1, 2});
    args.score.w = make_tensor(w.data(), SMLA_F64, {1, 1});
    args.score.keys.format = SMLA_ROW_F64;
    args.score.keys.width = 2;
    args.score.keys.page_tokens = 3;
    args.score.keys.pages = 1;
    args.score.keys.data = const_cast<double*>(keys.data());
    args.score.ends = make_tensor(&end, SMLA_I32, {1});
    args.select.indices = make_tensor(indices, SMLA_I32, {1, 2});
    EXPECT_STREQ(run_stage<Stage::score_select>(args, Runner().env), "cpu_generic_score_select");
    EXPECT_EQ(indices[0], 1);  // 1, 2, 3: the best two
    EXPECT_EQ(indices[1], 2);
}

TEST(ScoreSelect, BadArgumentsAreRefusedByName) {
    const ScoreCase test(ScoreShape{});
    const auto refusal = [&](void (*change)(smla_score_select_args&)) {
        std::vector<int32_t> indices(size_t(test.shape.tokens * 4));
        smla_score_select_args args{};
        args.columns = int32_t(test.shape.columns);
        args.score = test.args();
        args.select.indices = make_tensor(indices.data(), SMLA_I32, {test.shape.tokens, 4});
        change(args);
        return kit::refused_field([&] { run_stage<Stage::score_select>(args, Runner().env); });
    };
    EXPECT_EQ(refusal([](smla_score_select_args&) {}), "");
    EXPECT_EQ(refusal([](smla_score_select_args& a) { a.columns = -1; }), "args.columns");
    EXPECT_EQ(refusal([](smla_score_select_args& a) { a.score.logits = a.score.w; }), "args.score.logits");
    EXPECT_EQ(refusal([](smla_score_select_args& a) { a.select.scores = a.score.w; }), "args.select.scores");
    EXPECT_EQ(refusal([](smla_score_select_args& a) { a.select.ends = a.score.ends; }), "args.select.ends");
    EXPECT_EQ(refusal([](smla_score_select_args& a) { a.select.indices = {}; }), "args.select.indices");
}

}  // namespace
}  // namespace smla::test
