// The kernels on AMX tiles, emulated where the processor has none: that they run at all, hostile problems of
// the kit, what a context takes.
#include "support.h"

#include "engines/context.h"
#include "kit/amx_emulator.h"
#include "kit/context_args.h"
#include "kit/problem.h"

#include <cmath>

namespace attend_test {
namespace {

class Amx : public testing::Test {
protected:
    void SetUp() override {
        const std::string why = kit::emulate_amx();
        if (!why.empty()) GTEST_SKIP() << "no AMX: " << why;
    }
};

Context context_on_tiles(int threads, bool batch_invariant) {
    smla_context_args args = kit::context_args(SMLA_ENGINE_CPU, threads);
    args.isa = SMLA_ISA_AMX;
    args.batch_invariant = batch_invariant;
    return Context(args);
}

TEST_F(Amx, EveryTestOfAllKernelsReachesThem) {
    for (const int width : {576, 512}) {
        Spec spec;
        spec.width = width;
        spec.primary = {.format = SMLA_ROW_BF16, .k = 40};
        const Problem problem(spec);
        EXPECT_EQ(kernels(problem, best_env()).front(), "cpu_amx_attend");
        const Context context = context_on_tiles(1, false);
        for (const Verdict& each : explain_stage<Stage::attend>(problem.args, context.env({})))
            EXPECT_EQ(each.chosen, each.kernel == "cpu_amx_attend") << each.kernel;
    }
}

TEST_F(Amx, RowsOfEveryCountAroundItsBlocks) {  // 16 keys a tile, 32 a step and a part, 256 or 384 a block
    for (const int64_t k :
         {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 383, 384, 385, 511, 640, 641})
        for (const int64_t heads : {3, 80}) {
            Spec spec;
            spec.tokens = 1;
            spec.heads = heads;
            spec.primary = {.format = SMLA_FP8_656, .k = k};
            spec.seed = uint32_t(k + heads);
            check_all(spec);
        }
}

TEST_F(Amx, InfiniteValuesOfSomeKeysDoNotMeetPaddedOnes) {  // 0 times infinity is NaN
    Spec spec;
    spec.tokens = 1;
    spec.heads = 17;
    spec.primary = {.format = SMLA_ROW_BF16, .k = 33};
    Problem problem(spec);
    const CacheView cache = problem.view(false);
    std::vector<float> values(576);
    for (int64_t j = 0; j < 33; ++j) {  // every value of dim 5 is infinite; no logit is
        const int32_t row = problem.row(0, j);
        cache.decode(row, values.data());
        values[5] = INFINITY;
        cache.encode(row, values.data());
    }
    const Tensor& q = problem.args.q;
    for (int64_t h = 0; h < 17; ++h) {
        auto* head = reinterpret_cast<uint16_t*>(address(q, 0, h));
        head[5] = 0x3f80;  // 1: with 0 the logit would be NaN
    }
    const Expected expected = oracle(problem);
    problem.poison_outputs();
    run_kernel("cpu_amx_attend", problem, best_env());
    for (int64_t h = 0; h < 17; ++h)
        for (int64_t d = 0; d < 512; ++d)
            ASSERT_EQ(std::isnan(problem.value(0, h, d)), std::isnan(expected.out[size_t(h * 512 + d)]))
                << h << " " << d;
}

TEST_F(Amx, BatchInvariantBitsDependOnNoThreads) {
    Spec spec;
    spec.tokens = 3;
    spec.heads = 72;
    spec.primary = {.format = SMLA_FP8_656, .k = 700};
    spec.primary.lengths = true;
    Problem problem(spec);
    ThreadPool three(3);
    Env env = best_env();
    env.batch_invariant = true;
    run_kernel("cpu_amx_attend", problem, env);
    const Bits one(problem);
    problem.poison_outputs();
    env.pool = &three;
    run_kernel("cpu_amx_attend", problem, env);
    EXPECT_TRUE(one == Bits(problem));
}

TEST_F(Amx, HostileProblemsOfTheKit) {
    constexpr int kProblems = 60;
    const char* const kernel = "cpu_amx_attend";
    int ran = 0;
    for (uint64_t seed = 1; ran < kProblems; ++seed) {
        ASSERT_LT(seed, 3000u) << "too few problems suit " << kernel;
        kit::Random random(seed);
        Context context = context_on_tiles(random.pick({1, 2, 3}), random.chance(0.3));
        const Env env = context.env({});
        const auto takes = [&](const kit::Problem& problem) {
            for (const Verdict& each : problem.kernels(env))
                if (each.kernel == kernel) return each.refusal.empty();
            return false;
        };
        const auto problem =
            kit::make_problem(Stage::attend, {.seed = seed, .of_model = true, .wanted = takes});
        if (!problem || !takes(*problem)) continue;
        ++ran;
        kit::Comparison result;
        problem->memory.reset();
        problem->run(context, kernel, random.chance(0.7) ? 0 : size_t(random.log_between(1, 1 << 22)),
                     result);
        problem->compare(kernel, result);
        ASSERT_LE(result.worst, 1) << result.what << "; " << kernel << " seed " << seed << ": "
                                   << problem->description;
    }
}

}  // namespace
}  // namespace attend_test
