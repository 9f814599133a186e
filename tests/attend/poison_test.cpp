// What the contract's tests do not ask of each kernel by itself: gaps between rows, NaN in every format and
// scale, infinite logits, statistics of any layout, workspaces of smaller calls, which kernel is chosen.
#include "support.h"

#include "kit/amx_emulator.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace attend_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Spec small(smla_format format = SMLA_FP8_656, int64_t width = 576) {
    Spec spec;
    spec.width = width;
    spec.primary.format = format;
    spec.primary.k = 40;
    spec.heads = 9;
    return spec;
}

TEST(Kernels, GapsBetweenRowsAndPagesAreNeverRead) {  // they hold NaN
    for (const auto& [format, width] : {std::pair<smla_format, int64_t>{SMLA_FP8_656, 576},
                                        {SMLA_ROW_BF16, 576},
                                        {SMLA_FP8_576, 576},
                                        {SMLA_FP8_584, 512},
                                        {SMLA_FP8_528, 512}}) {
        Spec spec = small(format, width);
        spec.primary.page_tokens = 5;
        spec.primary.page_rows = 12;  // other layers' pages lie between
        spec.primary.page_gap = 576 * 8;
        spec.primary.row_gap = format == SMLA_FP8_584 ? 0 : 16;
        spec.primary.holes = 0.3;
        check_all(spec);
    }
}

TEST(Kernels, ANanInAListedRowReachesOnlyItsToken) {
    for (const auto& [format, width] : {std::pair<smla_format, int64_t>{SMLA_FP8_656, 576},
                                        {SMLA_FP8_584, 512},
                                        {SMLA_FP8_576, 576},
                                        {SMLA_ROW_BF16, 512},
                                        {SMLA_ROW_F32, 576}}) {
        Spec spec = small(format, width);
        spec.tokens = 3;
        spec.primary.pages = 3;
        spec.primary.k = 130;
        spec.out = SMLA_BF16;
        Problem problem(spec);
        const CacheView cache = problem.view(false);
        const int32_t bad = 7;
        std::vector<float> values(size_t(width), std::numeric_limits<float>::quiet_NaN());
        for (auto& row : problem.primary_rows)
            if (row == bad) row = 8;
        problem.row(1, 97) = bad;
        std::vector<float> clean(static_cast<size_t>(width));
        cache.decode(bad, clean.data());
        for (const int64_t at : {int64_t(3), width - 1}) {  // in the values, and in the key's rope part
            values = clean;
            values[size_t(at)] = std::numeric_limits<float>::quiet_NaN();
            cache.encode(bad, values.data());
            const Expected expected = oracle(problem);
            ASSERT_TRUE(std::isnan(expected.lse[size_t(spec.heads)]) && !std::isnan(expected.lse[0]));
            check_all(problem);
        }
    }
}

TEST(Kernels, NanInAScaleReachesOnlyItsToken) {
    Spec spec = small();
    spec.tokens = 2;
    Problem problem(spec);
    for (auto& row : problem.primary_rows)
        if (row == 11) row = 12;
    problem.row(0, 3) = 11;
    char* at = problem.view(false).at(11).row() + 512 + 8;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(at, &nan, 4);
    check_all(problem);
}

// The first key, keys of every block, and an infinite logit before it or behind it; split over rows, too.
TEST(Kernels, ANanLogitIsTheLargestWhereverItStands) {
    ThreadPool pool(4);
    for (const auto& [format, q] :
         {std::pair<smla_format, smla_dtype>{SMLA_ROW_F32, SMLA_F32}, {SMLA_ROW_BF16, SMLA_BF16}})
        for (const int64_t infinite : {-1, 0, 450}) {
            Spec spec = small(format, 576);
            spec.tokens = 1;
            spec.q = q;
            spec.primary.k = 600;
            Problem problem(spec);
            const CacheView cache = problem.view(false);
            std::vector<float> values(576);
            cache.decode(5, values.data());
            for (const auto& [row, value] : {std::pair{5, kInfinity}, {7, std::nanf("")}}) {
                values[575] = value;  // of the rope part
                cache.encode(row, values.data());
            }
            for (auto& row : problem.primary_rows)
                if (row == 5 || row == 7) row = 6;
            if (infinite >= 0) problem.row(0, infinite) = 5;
            for (const int64_t at : {0, 1, 150, 599}) {
                if (at == infinite) continue;
                const int32_t before = std::exchange(problem.row(0, at), 7);
                ASSERT_TRUE(std::isnan(oracle(problem).max_logits[0]));
                for (ThreadPool* each : {static_cast<ThreadPool*>(nullptr), &pool}) check_all(problem, each);
                problem.row(0, at) = before;
            }
        }
}

TEST(Kernels, InfiniteLogits) {  // an infinite rope value makes logits of +inf and -inf
    Spec spec = small(SMLA_ROW_F32, 576);
    spec.q = SMLA_F32;
    spec.primary.k = 200;
    Problem problem(spec);
    const CacheView cache = problem.view(false);
    std::vector<float> values(576);
    cache.decode(5, values.data());
    values[575] = kInfinity;
    cache.encode(5, values.data());
    for (auto& row : problem.primary_rows)
        if (row == 5) row = 6;
    for (int j = 0; j < 160; ++j)
        problem.row(0, j) = 5;  // whole blocks of -inf for the heads with negative q
    const Expected expected = oracle(problem);
    int finite = 0;
    for (int64_t h = 0; h < spec.heads; ++h) finite += std::isfinite(expected.lse[size_t(h)]);
    ASSERT_GT(finite, 0);
    ASSERT_LT(finite, spec.heads);
    check_all(problem);
}

TEST(Kernels, StridedRowsAndStatistics) {  // views of larger tables
    Spec spec = small();
    Problem problem(spec);
    std::vector<int32_t> wide(size_t(spec.tokens * spec.primary.k * 3), 5);
    for (int64_t i = 0; i < spec.tokens * spec.primary.k; ++i)
        wide[size_t(i * 3)] = problem.primary_rows[size_t(i)];
    problem.args.primary.rows.data = wide.data();
    problem.args.primary.rows.stride_elems[0] = spec.primary.k * 3;
    problem.args.primary.rows.stride_elems[1] = 3;
    const Expected expected = oracle(problem);
    for (const std::string& kernel : kernels(problem, best_env())) {
        std::vector<float> lse(size_t(spec.tokens * spec.heads * 2), -7.f);
        problem.args.lse = make_tensor(lse.data(), SMLA_F32, {spec.tokens, spec.heads});
        problem.args.lse.stride_elems[0] = 1;  // transposed
        problem.args.lse.stride_elems[1] = spec.tokens;
        run_kernel(kernel, problem, best_env());
        for (int64_t t = 0; t < spec.tokens; ++t)
            for (int64_t h = 0; h < spec.heads; ++h)
                EXPECT_NEAR(lse[size_t(h * spec.tokens + t)], expected.lse[size_t(t * spec.heads + h)], 1e-4);
        EXPECT_EQ(lse[size_t(spec.tokens * spec.heads)], -7.f);
    }
}

TEST(Kernels, WorkspaceOfTheMaximaHoldsEverySmallerCall) {
    ThreadPool pool(5);
    const Env env = best_env(&pool);
    for (const int64_t heads : {16, 48, 128, 160, 256}) {
        Spec spec = small();
        spec.tokens = 24;
        spec.heads = heads;
        spec.primary.k = 1300;
        Problem problem(spec);
        for (const std::string& kernel : kernels(problem, env)) {
            const size_t most = workspace_of(kernel, problem.args, env, 0);
            for (int64_t tokens = 1; tokens < spec.tokens; ++tokens)
                for (const int64_t k : {1, 256, 700, 1300}) {
                    smla_attend_args args = problem.args;
                    args.primary.rows = slice(args.primary.rows, 1, 0, k);
                    for (Tensor* each : {&args.q, &args.primary.rows, &args.out, &args.lse, &args.max_logits})
                        *each = slice(*each, 0, 0, tokens);
                    ASSERT_LE(workspace_of(kernel, args, env, 0), most)
                        << kernel << " H" << heads << " T" << tokens << " K" << k;
                }
        }
    }
}

TEST(Dispatch, KernelsOfStrongerInstructionSetsRefuse) {
    Problem problem(small());
    kit::emulate_amx();
    for (const smla_isa isa : isas_here()) {
        Env env;
        env.isa = isa;
        for (const Verdict& verdict : explain_stage<Stage::attend>(problem.args, env)) {
            smla_isa needed = SMLA_ISA_SCALAR;
            for (smla_isa each = SMLA_ISA_AVX2; each <= kLastIsa; ++each)
                if (verdict.kernel.find(text("_", isa_name(each), "_")) != std::string::npos) needed = each;
            EXPECT_EQ(verdict.refusal.empty(), isa >= needed) << verdict.kernel << ": " << verdict.refusal;
        }
    }
}

TEST(Dispatch, ModelWidthsUseTheFastestKernels) {
    kit::emulate_amx();
    for (const auto& [width, format] :
         {std::pair<int64_t, smla_format>{576, SMLA_FP8_656}, {512, SMLA_FP8_584}, {448, SMLA_ROW_BF16}})
        for (const smla_dtype q : {SMLA_F32, SMLA_BF16}) {
            Spec spec = small(format, width);
            spec.q = q;
            spec.value_width = std::min<int64_t>(width, 512);
            const Problem problem(spec);
            for (const smla_isa isa : isas_here()) {
                Env env;
                env.isa = isa;
                const bool bf16 = isa == SMLA_ISA_AVX512_BF16 || isa == SMLA_ISA_AMX;
                const std::string arithmetic = q == SMLA_BF16 && isa == SMLA_ISA_AMX ? "amx"
                                               : q == SMLA_BF16 && bf16              ? "avx512_bf16"
                                               : bf16                                ? "avx512_f32"
                                                      : text(isa_name(isa), "_f32");
                EXPECT_EQ(kernels(problem, env).front(), text("cpu_", arithmetic, "_attend"));
            }
        }
}

TEST(Kernels, AnyBudgetGivesTheSameResult) {
    ThreadPool pool(4);
    Spec spec = small();
    spec.tokens = 12;
    spec.heads = 24;
    Problem problem(spec);
    const Env env = best_env(&pool);
    for (const std::string& kernel : kernels(problem, env)) {
        const size_t full = workspace_of(kernel, problem.args, env, 0);
        const size_t least = workspace_of(kernel, problem.args, env, 1);
        if (kernel == "cpu_generic_attend") continue;  // uses no scratch
        ASSERT_LT(least, full) << kernel;
        run_kernel(kernel, problem, env);
        const Bits expected(problem);
        for (const size_t budget : {size_t(1), least, (least + full) / 2, full, 2 * full}) {
            if (budget >= least) {
                EXPECT_LE(workspace_of(kernel, problem.args, env, budget), budget) << kernel;
            }
            problem.poison_outputs();
            run_kernel(kernel, problem, env, budget);
            EXPECT_TRUE(expected == Bits(problem)) << kernel << " budget " << budget;
        }
    }
}

}  // namespace
}  // namespace attend_test
