// score on AMX tiles, emulated where the processor has none: that the tests of this program reach it, key and
// head counts around its passes, hostile problems of the kit, what it leaves behind.
#include "index/cases.h"
#include "index/expected.h"

#include "engines/context.h"
#include "kit/amx_emulator.h"
#include "kit/context_args.h"
#include "kit/problem.h"

#include <cmath>

namespace smla::test {
namespace {

constexpr const char* kKernel = "cpu_amx_score";

// Before all tests of this program: those of every kernel and instruction set have this one then.
class Emulation : public testing::Environment {
    void SetUp() override { kit::emulate_amx(); }
};
const testing::Environment* const kEmulation = testing::AddGlobalTestEnvironment(new Emulation);

class ScoreAmx : public testing::Test {
protected:
    void SetUp() override {
        const std::string why = kit::emulate_amx();
        if (!why.empty()) GTEST_SKIP() << "no AMX: " << why;
    }
};

smla_score_args without_data(const ScoreCase& test) {
    smla_score_args args = test.args();
    args.logits = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {test.shape.tokens, test.shape.columns});
    return args;
}

void expect_within_bound(const ScoreShape& shape) {
    const ScoreCase test(shape);
    Runner runner;
    runner.demand<Stage::score>(kKernel);
    const std::vector<float> got = run_score(test, runner.env);
    for (int64_t t = 0; t < shape.tokens; ++t)
        for (int64_t j = 0; j < shape.columns; ++j) {
            const Want want = logit_of(test, t, test.row(0, j));
            ASSERT_LE(std::fabs(double(got[size_t(t * shape.columns + j)]) - want.logit), want.bound)
                << "N " << shape.columns << " H " << shape.heads << " D " << shape.width << ": " << t << " "
                << j;
        }
}

TEST_F(ScoreAmx, EveryTestOfAllKernelsReachesIt) {
    const ScoreCase test(ScoreShape{});
    EXPECT_EQ(runnable_kernels<Stage::score>(without_data(test)).front(), kKernel);
    for (const bool slow_bf16_dots : {false, true}) {  // which tiles are not
        Runner runner;
        runner.env.slow_bf16_dots = slow_bf16_dots;
        for (const Verdict& each : explain_stage<Stage::score>(without_data(test), runner.env))
            EXPECT_EQ(each.chosen, each.kernel == kKernel) << each.kernel;
    }
}

TEST_F(ScoreAmx, FusedStagesTakeItWhereScoreDoes) {
    ScoreShape shape;
    shape.format = SMLA_ROW_BF16;  // whose sums are not exact, so that kernels differ
    shape.q = SMLA_BF16;
    shape.columns = 700;
    shape.tokens = 2;
    const ScoreCase test(shape);
    const auto selected = [&](const char* kernel, bool slow_bf16_dots) {
        Runner runner;
        runner.env.slow_bf16_dots = slow_bf16_dots;
        runner.demand<Stage::score>(kernel);
        return run_score_select(test, 50, runner.env);
    };
    const Selection want = selected(kKernel, false);
    EXPECT_FALSE(want == selected("cpu_avx512_f32_score", false));
    for (const bool slow_bf16_dots : {false, true}) EXPECT_TRUE(want == selected("", slow_bf16_dots));
}

TEST_F(ScoreAmx, KeysAndHeadsAroundItsPasses) {  // 16 a tile, 32 a pass, 64 keys a tile of the driver
    for (const int64_t columns : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 128, 129, 200})
        for (const int64_t heads : {1, 16, 17, 33, 49, 64, 65}) {
            ScoreShape shape;
            shape.tokens = 1;
            shape.columns = columns;
            shape.heads = heads;
            shape.odd_scales = true;
            shape.seed = uint32_t(columns + heads);
            expect_within_bound(shape);
        }
}

TEST_F(ScoreAmx, WidthsAroundItsSteps) {  // 32 values a step
    for (const int64_t width : {1, 2, 31, 32, 33, 64, 65, 95, 96, 128, 129, 300})
        for (const smla_dtype q : {SMLA_E4M3, SMLA_BF16}) {
            ScoreShape shape;
            shape.format = SMLA_ROW_BF16;
            shape.q = q;
            shape.tokens = 2;
            shape.columns = 70;
            shape.heads = 40;
            shape.width = width;
            shape.seed = uint32_t(width);
            expect_within_bound(shape);
        }
}

TEST_F(ScoreAmx, TilesAreReleased) {
    const ScoreCase test(ScoreShape{});
    const Runner runner;
    run_score(test, runner.env);
    run_score_select(test, 20, runner.env);
#if defined(__x86_64__)
    alignas(64) uint8_t config[64];
    asm volatile("sttilecfg %0" : "=m"(config));
    for (const uint8_t byte : config) ASSERT_EQ(byte, 0) << "this thread's tiles are still configured";
#endif
}

TEST_F(ScoreAmx, HostileProblemsOfTheKit) {
    constexpr int kProblems = 40;
    const auto kernel_of = [](Stage stage) -> std::string {
        return stage == Stage::score          ? kKernel
               : stage == Stage::score_select ? "cpu_streamed_score_select"
                                              : "cpu_streamed_score_select_blocks";
    };
    for (const Stage stage : {Stage::score, Stage::score_select, Stage::score_select_blocks}) {
        const std::string kernel = kernel_of(stage);
        int ran = 0;
        for (uint64_t seed = 1; ran < kProblems; ++seed) {
            ASSERT_LT(seed, 2000u) << "too few problems suit " << kernel;
            kit::Random random(seed);
            smla_context_args args = kit::context_args(SMLA_ENGINE_CPU, random.pick({1, 2, 3}));
            args.isa = SMLA_ISA_AMX;
            args.batch_invariant = random.chance(0.3);
            const std::string demands = text("score=", kKernel);
            args.kernel = demands.c_str();
            Context context(args);
            const Env env = context.env({});
            const auto takes = [&](const kit::Problem& problem) {
                for (const Verdict& each : problem.kernels(env))
                    if (each.kernel == kernel) return each.refusal.empty();
                return false;
            };
            const auto problem =
                kit::make_problem(stage, {.seed = seed, .of_model = random.chance(0.3), .wanted = takes});
            if (!problem || !takes(*problem)) continue;
            ++ran;
            kit::Comparison result;
            problem->memory.reset();
            problem->run(context, kernel, random.chance(0.7) ? 0 : size_t(random.log_between(1, 1 << 20)),
                         result);
            problem->compare(kernel, result);
            ASSERT_LE(result.worst, 1)
                << result.what << "; " << kernel << " seed " << seed << ": " << problem->description;
        }
    }
}

}  // namespace
}  // namespace smla::test
