// The contract of attend, line by line: what must not be read, what must not leak, what is bit for bit the
// same.
#include "support.h"

#include <cmath>
#include <cstring>
#include <limits>

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

TEST(Contract, GapsBetweenRowsAndPagesAreNeverRead) {  // they hold NaN
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

TEST(Contract, ANanInAListedRowReachesOnlyItsToken) {
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

TEST(Contract, NanInAScaleReachesOnlyItsToken) {
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

TEST(Contract, InfiniteLogits) {  // an infinite rope value makes logits of +inf and -inf
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

TEST(Contract, LengthsAreClampedAndRowsPastThemNeverRead) {
    Spec spec = small();
    spec.tokens = 5;
    spec.primary.lengths = true;
    Problem problem(spec);
    const int32_t lengths[] = {INT32_MIN, -1, 0, 17, INT32_MAX};
    for (int t = 0; t < 5; ++t) problem.primary_lengths[size_t(t)] = lengths[t];
    check_all(problem);
    const Expected expected = oracle(problem);
    for (int t = 0; t < 3; ++t) EXPECT_EQ(expected.lse[size_t(t * spec.heads)], -kInfinity);
    // whatever stands there
    ThreadPool pool(2);
    const Env env = best_env(&pool);
    for (const auto* kernel : kernels(problem, env)) {
        run_kernel(*kernel, problem, env);
        const Bits before(problem);
        for (int64_t j = 17; j < spec.primary.k; ++j) problem.row(3, j) = int32_t(j) % 2 ? 3 : 2147480000;
        problem.poison_outputs();
        run_kernel(*kernel, problem, env);
        EXPECT_TRUE(before == Bits(problem)) << kernel->name;
    }
}

TEST(Contract, StridedRowsAndStatistics) {  // views of larger tables
    Spec spec = small();
    Problem problem(spec);
    std::vector<int32_t> wide(size_t(spec.tokens * spec.primary.k * 3), 5);
    for (int64_t i = 0; i < spec.tokens * spec.primary.k; ++i)
        wide[size_t(i * 3)] = problem.primary_rows[size_t(i)];
    problem.args.primary.rows.data = wide.data();
    problem.args.primary.rows.stride_elems[0] = spec.primary.k * 3;
    problem.args.primary.rows.stride_elems[1] = 3;
    const Expected expected = oracle(problem);
    for (const auto* kernel : kernels(problem, best_env())) {
        std::vector<float> lse(size_t(spec.tokens * spec.heads * 2), -7.f);
        problem.args.lse = make_tensor(lse.data(), SMLA_F32, {spec.tokens, spec.heads});
        problem.args.lse.stride_elems[0] = 1;  // transposed
        problem.args.lse.stride_elems[1] = spec.tokens;
        run_kernel(*kernel, problem, best_env());
        for (int64_t t = 0; t < spec.tokens; ++t)
            for (int64_t h = 0; h < spec.heads; ++h)
                EXPECT_NEAR(lse[size_t(h * spec.tokens + t)], expected.lse[size_t(t * spec.heads + h)], 1e-4);
        EXPECT_EQ(lse[size_t(spec.tokens * spec.heads)], -7.f);
    }
}

TEST(Contract, DeviceScalesOverride) {
    Spec spec = small(SMLA_FP8_576);
    spec.q = SMLA_E4M3;
    spec.out = SMLA_BF16;
    Problem problem(spec);
    Problem overridden(spec);
    const float scale = problem.args.softmax_scale, q_scale = problem.args.q_scale,
                cache_scale = problem.args.primary.cache.scale;
    overridden.args.softmax_scale = 17;
    overridden.args.q_scale = 0;
    overridden.args.primary.cache.scale = 0;
    overridden.args.softmax_scale_device = &scale;
    overridden.args.q_scale_device = &q_scale;
    overridden.args.primary.cache.scale_device = &cache_scale;
    for (const auto* kernel : kernels(problem, best_env())) {
        run_kernel(*kernel, problem, best_env());
        run_kernel(*kernel, overridden, best_env());
        EXPECT_TRUE(Bits(problem) == Bits(overridden)) << kernel->name;
    }
}

TEST(Contract, OptionalOutputsMayBeAbsent) {
    Problem problem(small());
    const Expected expected = oracle(problem);
    problem.args.lse = {};
    problem.args.max_logits = {};
    for (const auto* kernel : kernels(problem, best_env())) {
        problem.poison_outputs();
        run_kernel(*kernel, problem, best_env());
        EXPECT_NEAR(problem.value(1, 8, 500), expected.out[size_t((1 * 9 + 8) * 512 + 500)], 2e-2)
            << kernel->name;
        EXPECT_TRUE(std::isnan(problem.lse[0]));
    }
}

TEST(Contract, SameInputsSameBits) {
    ThreadPool pool(3);
    for (const int64_t tokens : {1, 5}) {
        Spec spec = small();
        spec.tokens = tokens;
        spec.heads = 70;
        spec.primary.k = 700;
        Problem problem(spec);
        const Env env = best_env(&pool);
        for (const auto* kernel : kernels(problem, env)) {
            run_kernel(*kernel, problem, env);
            const Bits first(problem);
            for (int i = 0; i < 3; ++i) {
                problem.poison_outputs();
                run_kernel(*kernel, problem, env);
                ASSERT_TRUE(first == Bits(problem)) << kernel->name;
            }
        }
    }
}

// The same token of the same problem, alone.
smla_attend_args one_token(const Problem& problem, int64_t t) {
    smla_attend_args args = problem.args;
    for (Tensor* tensor : {&args.q, &args.out, &args.lse, &args.max_logits, &args.primary.rows,
                           &args.primary.lengths, &args.extra.rows, &args.extra.lengths})
        if (present(*tensor)) *tensor = slice(*tensor, 0, t, t + 1);
    return args;
}

TEST(Contract, BatchInvariantModeGivesATokenTheSameBitsAloneAndInABatch) {
    ThreadPool one(1), three(3);
    Spec spec = small(SMLA_FP8_584, 512);
    spec.tokens = 9;
    spec.heads = 136;  // more than one chunk
    spec.primary.k = 90;
    spec.primary.lengths = true;
    spec.extra.format = SMLA_FP8_528;
    spec.extra.k = 560;
    spec.extra.holes = 0.1;
    spec.sink = true;
    Problem problem(spec);
    Env batch = best_env(&three), alone = best_env(&one), spread = best_env(&three);
    batch.batch_invariant = alone.batch_invariant = spread.batch_invariant = true;
    for (const auto* kernel : kernels(problem, batch)) {
        problem.poison_outputs();
        run_kernel(*kernel, problem, batch);
        const Bits together(problem);
        for (const Env& env : {alone, spread}) {
            problem.poison_outputs();
            for (int64_t t = 0; t < spec.tokens; ++t) run_kernel(*kernel, one_token(problem, t), env);
            ASSERT_TRUE(together == Bits(problem)) << kernel->name;
        }
    }
}

TEST(Contract, AnyBudgetGivesTheSameResult) {
    ThreadPool pool(4);
    Spec spec = small();
    spec.tokens = 12;
    spec.heads = 24;
    Problem problem(spec);
    const Env env = best_env(&pool);
    for (const auto* kernel : kernels(problem, env)) {
        const size_t full = kernel->workspace(problem.args, env, 0);
        const size_t least = kernel->workspace(problem.args, env, 1);
        ASSERT_LT(least, full);
        run_kernel(*kernel, problem, env);
        const Bits expected(problem);
        for (const size_t budget : {size_t(1), least, (least + full) / 2, full, 2 * full}) {
            if (budget >= least) {
                EXPECT_LE(kernel->workspace(problem.args, env, budget), budget);
            }
            problem.poison_outputs();
            run_kernel(*kernel, problem, env, budget);
            EXPECT_TRUE(expected == Bits(problem)) << kernel->name << " budget " << budget;
        }
    }
}

TEST(Contract, WorkspaceOfTheMaximaHoldsEverySmallerCall) {
    ThreadPool pool(5);
    const Env env = best_env(&pool);
    for (const int64_t heads : {16, 48, 128, 160, 256}) {
        Spec spec = small();
        spec.tokens = 24;
        spec.heads = heads;
        spec.primary.k = 1300;
        Problem problem(spec);
        for (const auto* kernel : kernels(problem, env)) {
            const size_t most = kernel->workspace(problem.args, env, 0);
            for (int64_t tokens = 1; tokens < spec.tokens; ++tokens)
                for (const int64_t k : {1, 256, 700, 1300}) {
                    smla_attend_args args = problem.args;
                    args.q = slice(args.q, 0, 0, tokens);
                    args.primary.rows = slice(slice(args.primary.rows, 0, 0, tokens), 1, 0, k);
                    ASSERT_LE(kernel->workspace(args, env, 0), most)
                        << kernel->name << " H" << heads << " T" << tokens << " K" << k;
                }
        }
    }
}

TEST(Contract, AWorkspaceTooSmallIsRefusedBeforeAnythingIsWritten) {
    Problem problem(small());
    for (const auto* kernel : kernels(problem, best_env())) {
        Env env = best_env();
        std::vector<char> memory(kernel->workspace(problem.args, env, 0) - 4096);
        env.workspace = {memory.data(), memory.size()};
        try {
            kernel->run(problem.args, env);
            FAIL() << kernel->name;
        } catch (const Error& error) {
            EXPECT_EQ(error.status, SMLA_WORKSPACE_TOO_SMALL);
            EXPECT_EQ(error.field, "workspace.bytes");
        }
        problem.expect_canaries();
        EXPECT_TRUE(std::isnan(problem.lse[0]));
    }
}

TEST(Contract, KernelsOfStrongerInstructionSetsRefuse) {
    Problem problem(small());
    for (int isa = SMLA_ISA_SCALAR; isa <= SMLA_ISA_AVX512_BF16; ++isa) {
        Env env;
        env.isa = isa;
        for (const auto& kernel : all_kernels()) {
            const std::string refusal = kernel.refuse(problem.args, env);
            int needed = SMLA_ISA_SCALAR;
            for (int each = SMLA_ISA_AVX2; each <= SMLA_ISA_AVX512_BF16; ++each)
                if (std::strstr(kernel.name, isa_name(each))) needed = each;
            const bool other_width = std::string(kernel.name).substr(std::strlen(kernel.name) - 4) == "_512";
            EXPECT_EQ(refusal.empty(), isa >= needed && !other_width) << kernel.name << ": " << refusal;
        }
    }
}

TEST(Contract, ModelWidthsHaveKernelsOfTheirOwn) {  // no silent fall-back to the generic code
    for (const auto& [width, format] :
         {std::pair<int64_t, smla_format>{576, SMLA_FP8_656}, {512, SMLA_FP8_584}})
        for (const smla_dtype q : {SMLA_F32, SMLA_BF16}) {
            Spec spec = small(format, width);
            spec.q = q;
            const Problem problem(spec);
            for (int isa = SMLA_ISA_SCALAR; isa <= SMLA_ISA_AVX512_BF16; ++isa) {
                Env env;
                env.isa = isa;
                std::string first;
                for (const auto& kernel : all_kernels())
                    if (first.empty() && kernel.refuse(problem.args, env).empty()) first = kernel.name;
#if defined(__x86_64__)
                std::string wanted = text("cpu_", isa_name(isa), "_f32_", width);
                if (isa == SMLA_ISA_AVX512_BF16)
                    wanted = text(q == SMLA_BF16 ? "cpu_avx512_bf16_" : "cpu_avx512_f32_", width);
#else
                const std::string wanted = text("cpu_scalar_f32_", width);
#endif
                EXPECT_EQ(first, wanted);
            }
        }
}

}  // namespace
}  // namespace attend_test
