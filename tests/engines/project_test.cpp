// Products in blocks, of which random problems of the kit are too small for a second one. Through CBLAS,
// weights of 16 bits are widened in blocks of rows, whose size follows the tokens and the budget; bf16 with
// bf16 has blocks in all three dimensions.
#include "core/numbers.h"
#include "engines/context.h"
#include "engines/run.h"
#include "kit/amx_emulator.h"
#include "kit/context_args.h"
#include "linear/cblas.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <tuple>

namespace smla {
namespace {

constexpr int64_t kInner = 5000, kOuter = 130;  // 52 rows are a block of few tokens

Context on_cpu(bool batch_invariant, const char* kernel = "cpu_cblas_project", int32_t threads = 1) {
    smla_context_args args = kit::context_args(SMLA_ENGINE_CPU, threads);
    args.batch_invariant = batch_invariant;
    const std::string demand = std::string("project=") + kernel;
    if (*kernel) args.kernel = demand.c_str();
    return Context(args);
}

// Whether calls use at least this instruction set: SMLA_ISA may hold them below the processor's.
bool on_x86_with([[maybe_unused]] smla_isa least) {
#if defined(__x86_64__)
    return on_cpu(false).env({}).isa >= least;
#else
    return false;
#endif
}

// T rows times a bf16 weight, stored by rows or by columns.
struct Product {
    std::vector<float> x, out;
    std::vector<uint16_t> w;
    smla_project_args args{};

    Product(int64_t tokens, bool by_columns)
        : x(size_t(tokens * kInner)), out(size_t(tokens * kOuter), NAN), w(size_t(kInner * kOuter)) {
        std::mt19937 random(7);
        std::uniform_real_distribution<float> values(-1, 1);
        for (float& value : x) value = values(random);
        for (uint16_t& value : w) value = f32_to_bf16(values(random));
        args.struct_size = sizeof args;
        args.x = make_tensor(x.data(), SMLA_F32, {tokens, 1, kInner});
        args.w = make_tensor(w.data(), SMLA_BF16, {1, kOuter, kInner});
        if (by_columns) args.w.stride_elems[1] = 1, args.w.stride_elems[2] = kOuter;
        args.out = make_tensor(out.data(), SMLA_F32, {tokens, 1, kOuter});
    }
    // Sums of kInner products in f32: a random walk of roundings stays far below this.
    void expect_right() const {
        for (int64_t t = 0; t < args.x.shape[0]; t += 7)
            for (int64_t n = 0; n < kOuter; ++n) {
                double sum = 0;
                for (int64_t k = 0; k < kInner; ++k)
                    sum += double(x[size_t(t * kInner + k)]) *
                           bf16_to_f32(w[size_t(n * args.w.stride_elems[1] + k * args.w.stride_elems[2])]);
                ASSERT_NEAR(out[size_t(t * kOuter + n)], sum, 2e-3) << "token " << t << ", output " << n;
            }
    }
};

size_t run(Context& context, Product& product, size_t budget) {
    std::fill(product.out.begin(), product.out.end(), NAN);
    const size_t bytes = stage_workspace<Stage::project>(product.args, context.env({}), budget);
    OwnedWorkspace owned(context);
    Workspace workspace = owned.at_least(bytes);
    workspace.bytes = bytes;
    run_stage<Stage::project>(product.args, context.env(workspace));
    return bytes;
}

TEST(CblasProject, BlocksOfWeightsGrowWithTokensWithinTheBudget) {
    if (!cblas().sgemm) GTEST_SKIP() << "no CBLAS here";
    Context context = on_cpu(false);
    for (const bool by_columns : {false, true})
        for (const int64_t tokens : {20, 90, 600}) {
            SCOPED_TRACE(testing::Message() << tokens << " tokens, by columns " << by_columns);
            Product product(tokens, by_columns);
            const size_t all = run(context, product, 0);
            product.expect_right();
            const size_t least = run(context, product, kWorkspaceHeader + 1);
            product.expect_right();
            const int64_t rows = std::min(std::max<int64_t>(tokens, 52), kOuter);
            EXPECT_EQ(all - least, size_t(rows - 52) * kInner * sizeof(float));
        }
}

// A budget that is just enough for some tokens cuts the blocks or passes of more.
TEST(Project, WithinABudgetMoreTokensNeverWantLess) {
    struct Kernel {
        const char* name;
        smla_isa needed;
        smla_dtype x;
    };
    for (const Kernel& kernel : {Kernel{"cpu_cblas_project", SMLA_ISA_SCALAR, SMLA_F32},
                                 {"cpu_cblas_project", SMLA_ISA_SCALAR, SMLA_BF16},
                                 {"cpu_avx2_few_project", SMLA_ISA_AVX2, SMLA_F32},
                                 {"cpu_avx512_few_project", SMLA_ISA_AVX512, SMLA_BF16},
                                 {"cpu_avx512_bf16_project", SMLA_ISA_AVX512_BF16, SMLA_BF16}}) {
        if (kernel.needed == SMLA_ISA_SCALAR ? !cblas().sgemm : !on_x86_with(SMLA_ISA_SCALAR)) continue;
        const Context context = on_cpu(false, kernel.name, 2);
        Env env = context.env({});
        env.isa = kernel.needed;  // sizes alone: no kernel runs
        env.plans = nullptr;
        const auto size = [&](int64_t tokens, size_t budget) {
            smla_project_args args{.struct_size = sizeof args};
            args.x = make_tensor(static_cast<void*>(nullptr), kernel.x, {tokens, 1, kInner});
            args.w = make_tensor(static_cast<void*>(nullptr), SMLA_BF16, {1, kOuter, kInner});
            args.out = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {tokens, 1, kOuter});
            return stage_workspace<Stage::project>(args, env, budget);
        };
        const int64_t counts[] = {1, 4, 7, 20, 40, 52, 60, 90, 120, 200, 513, 700};
        for (const int64_t enough : counts) {
            const size_t budget = size(enough, 0) + 1;
            size_t before = 0;
            for (const int64_t tokens : counts) {
                const size_t bytes = size(tokens, budget);
                EXPECT_GE(bytes, before) << kernel.name << ", " << tokens << " tokens, budget of " << enough;
                EXPECT_LE(tokens <= enough ? bytes : 0, budget) << kernel.name << ", " << tokens << " tokens";
                before = bytes;
            }
        }
    }
}

TEST(CblasProject, BatchInvariantBlocksDoNotFollowTheTokens) {
    if (!cblas().sgemm) GTEST_SKIP() << "no CBLAS here";
    Context context = on_cpu(true);
    Product product(600, false);
    const size_t all = run(context, product, 0);
    product.expect_right();
    const std::vector<float> bits = product.out;
    EXPECT_EQ(run(context, product, kWorkspaceHeader + 1), all);
    EXPECT_EQ(product.out, bits);
}

// Dense strides are 0 then, which is no leading dimension.
TEST(CblasProject, ASumOfNothingIsZero) {
    if (!cblas().sgemm) GTEST_SKIP() << "no CBLAS here";
    Context context = on_cpu(false);
    for (const smla_dtype dtype : {SMLA_F32, SMLA_BF16}) {
        Product product(3, false);
        product.args.x = make_tensor(product.x.data(), SMLA_F32, {3, 1, 0});
        product.args.w = make_tensor(product.w.data(), dtype, {1, kOuter, 0});
        run(context, product, 0);
        EXPECT_EQ(product.out, std::vector<float>(product.out.size(), 0.f)) << dtype_name(dtype);
    }
}

// The weights' blocks that stay in L2 end inside of a thread's block: 26 rows of 5000, or 64 columns of them.
TEST(FewTokensProject, ATokenHasTheBitsItHasAlone) {
    const char* const kernel =
        on_x86_with(SMLA_ISA_AVX512) ? "cpu_avx512_few_project" : "cpu_avx2_few_project";
    if (!on_x86_with(SMLA_ISA_AVX2)) GTEST_SKIP() << "no AVX2 here";
    Context context = on_cpu(false, kernel);
    for (const bool by_columns : {false, true})
        for (const int64_t tokens : {4, 5, 63, 64}) {
            SCOPED_TRACE(testing::Message() << tokens << " tokens, by columns " << by_columns);
            Product all(tokens, by_columns);
            run(context, all, 0);
            all.expect_right();
            for (int64_t t = 0; t < tokens; ++t) {
                Product one(1, by_columns);
                std::copy_n(&all.x[size_t(t * kInner)], kInner, one.x.data());
                std::copy(all.w.begin(), all.w.end(), one.w.begin());
                run(context, one, 0);
                ASSERT_EQ(std::memcmp(one.out.data(), &all.out[size_t(t * kOuter)], kOuter * sizeof(float)),
                          0)
                    << "token " << t;
            }
        }
    Product more(65, false);
    EXPECT_THROW(run(context, more, 0), Error);
}

// In batch-invariant mode no product of f32 or bf16 goes through a BLAS, whatever the tokens, threads and
// budget.
TEST(FewTokensProject, BatchInvariantProductsOfAnySizeHaveTheBitsOfOneToken) {
    if (!on_x86_with(SMLA_ISA_AVX2)) GTEST_SKIP() << "no AVX2 here";
    // cpu_avx512_bf16_project takes no odd inner dimension
    for (const auto& [of_x, of_w, inner] : {std::tuple(SMLA_F32, SMLA_F32, kInner),
                                            {SMLA_F32, SMLA_BF16, kInner},
                                            {SMLA_BF16, SMLA_F32, kInner},
                                            {SMLA_BF16, SMLA_BF16, kInner},
                                            {SMLA_BF16, SMLA_BF16, kInner - 1}}) {
        SCOPED_TRACE(testing::Message() << dtype_name(of_x) << " by " << dtype_name(of_w) << ", " << inner);
        constexpr int64_t kTokens = 150;
        Product product(kTokens, false);
        std::vector<float> w(product.w.size());
        std::vector<uint16_t> x(product.x.size());
        for (size_t i = 0; i < w.size(); ++i) w[i] = bf16_to_f32(product.w[i]);
        for (size_t i = 0; i < x.size(); ++i) x[i] = f32_to_bf16(product.x[i]);
        if (of_x == SMLA_BF16) product.args.x.dtype = SMLA_BF16, product.args.x.data = x.data();
        product.args.x.shape[2] = product.args.w.shape[2] = inner;
        if (of_w == SMLA_F32) product.args.w.dtype = SMLA_F32, product.args.w.data = w.data();
        std::vector<float> wanted;
        for (const auto& [threads, count, budget] :
             {std::array<int64_t, 3>{1, kTokens, 0}, {2, kTokens, 300'000}, {2, 63, 0}, {1, 1, 0}}) {
            Context context = on_cpu(true, "", int32_t(threads));
            Product part = product;
            part.args.x.shape[0] = part.args.out.shape[0] = count;
            part.args.out.data = part.out.data();
            run(context, part, size_t(budget));
            part.out.resize(size_t(count * kOuter));
            if (wanted.empty()) wanted = part.out;
            EXPECT_EQ(std::memcmp(part.out.data(), wanted.data(), part.out.size() * sizeof(float)), 0)
                << threads << " threads, " << count << " tokens, budget " << budget;
        }
    }
}

// Two groups of rows of x, with NaN between them, times bf16 weights; NaN around what is written.
struct Bf16Product {
    static constexpr int64_t kGroups = 2, kGap = 3;
    int64_t tokens, inner, outer;
    std::vector<uint16_t> x, w, bf16;
    std::vector<float> f32;
    smla_project_args args{};

    Bf16Product(int64_t tokens, int64_t inner, int64_t outer, bool by_columns, smla_dtype out)
        : tokens(tokens),
          inner(inner),
          outer(outer),
          x(size_t(tokens * kGroups * (inner + kGap)), 0x7fff),
          w(size_t(kGroups * inner * outer)),
          bf16(size_t(tokens * kGroups * (outer + kGap)), 0x7fff),
          f32(bf16.size(), NAN) {
        std::mt19937 random(11);
        std::uniform_real_distribution<float> values(-1, 1);
        args.struct_size = sizeof args;
        args.x = make_tensor(x.data(), SMLA_BF16, {tokens, kGroups, inner + kGap});
        args.x.shape[2] = inner;
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t i = 0; i < kGroups * inner; ++i)
                x[size_t((t * kGroups + i / inner) * (inner + kGap) + i % inner)] =
                    f32_to_bf16(values(random));
        for (uint16_t& value : w) value = f32_to_bf16(values(random));
        args.w = make_tensor(w.data(), SMLA_BF16, {kGroups, outer, inner});
        if (by_columns) args.w.stride_elems[1] = 1, args.w.stride_elems[2] = outer;
        void* const written = out == SMLA_BF16 ? static_cast<void*>(bf16.data()) : f32.data();
        args.out = make_tensor(written, out, {tokens, kGroups, outer + kGap});
        args.out.shape[2] = outer;
    }
    double value(int64_t t, int64_t g, int64_t n) const {
        float out;
        load_row(args.out, address(args.out, t, g, n), 1, &out);
        return out;
    }
    // Products are exact and sums are f32, so that only the order of additions is open.
    void expect_right(int64_t step) const {
        const double rounding = args.out.dtype == SMLA_BF16 ? 0x1p-8 : 0;
        for (int64_t t = 0; t < tokens; t += step)
            for (int64_t g = 0; g < kGroups; ++g) {
                for (int64_t n = 0; n < outer; ++n) {
                    double sum = 0, size = 0;
                    for (int64_t k = 0; k < inner; ++k) {
                        const double term =
                            double(bf16_to_f32(x[size_t((t * kGroups + g) * (inner + kGap) + k)])) *
                            bf16_to_f32(w[size_t(g * inner * outer + n * args.w.stride_elems[1] +
                                                 k * args.w.stride_elems[2])]);
                        sum += term;
                        size += std::fabs(term);
                    }
                    ASSERT_NEAR(value(t, g, n), sum,
                                double(inner + 2) * 0x1p-24 * size + rounding * std::fabs(sum))
                        << "token " << t << ", group " << g << ", output " << n;
                }
                for (int64_t n = outer; n < outer + kGap; ++n) ASSERT_TRUE(std::isnan(value(t, g, n)));
            }
    }
};

size_t run_bf16(Context& context, Bf16Product& product, size_t budget) {
    const size_t bytes = stage_workspace<Stage::project>(product.args, context.env({}), budget);
    OwnedWorkspace owned(context);
    Workspace workspace = owned.at_least(bytes);
    workspace.bytes = bytes;
    run_stage<Stage::project>(product.args, context.env(workspace));
    return bytes;
}

TEST(Bf16Project, EveryBlockAndEdge) {
    if (!on_x86_with(SMLA_ISA_AVX512_BF16)) GTEST_SKIP() << "no AVX-512 bf16 here";
    Context context = on_cpu(false, "cpu_avx512_bf16_project", 2);
    for (const bool by_columns : {false, true})
        for (const smla_dtype out : {SMLA_F32, SMLA_BF16})
            // Partial tiles and panels; several blocks of tokens, outputs and the inner dimension.
            for (const auto& [tokens, inner, outer] :
                 {std::array<int64_t, 3>{1, 2, 1}, {7, 34, 17}, {13, 1024, 64}, {523, 2082, 331}}) {
                SCOPED_TRACE(text("T", tokens, ", ", inner, " to ", outer, ", by columns ", by_columns));
                Bf16Product product(tokens, inner, outer, by_columns, out);
                run_bf16(context, product, 0);
                product.expect_right(tokens > 100 ? 29 : 1);
            }
}

class TilesProject : public testing::Test {
protected:
    void SetUp() override {
        const std::string why = kit::emulate_amx();
        if (!why.empty()) GTEST_SKIP() << "no AMX: " << why;
        if (!on_x86_with(SMLA_ISA_AMX)) GTEST_SKIP() << "SMLA_ISA forbids AMX";
    }
    static constexpr const char* kKernel = "cpu_amx_few_project";
};

TEST_F(TilesProject, EveryStepAndEdgeOfBf16) {
    Context context = on_cpu(false, kKernel, 2);
    for (const bool by_columns : {false, true})
        for (const smla_dtype out : {SMLA_F32, SMLA_BF16})
            for (const auto& [tokens, inner, outer] : {std::array<int64_t, 3>{5, 2, 2},
                                                       {16, 34, 31},
                                                       {17, 32, 129},
                                                       {32, 330, 97},
                                                       {9, 62, 300}}) {
                SCOPED_TRACE(text("T", tokens, ", ", inner, " to ", outer, ", by columns ", by_columns));
                Bf16Product product(tokens, inner, outer, by_columns, out);
                run_bf16(context, product, 0);
                product.expect_right(1);
            }
    Bf16Product few(4, 64, 64, false, SMLA_F32), many(33, 64, 64, false, SMLA_F32);
    EXPECT_THROW(run_bf16(context, few, 0), Error);
    EXPECT_THROW(run_bf16(context, many, 0), Error);
}

// f32 is three bf16: products are exact, so sums are as good as those of a loop in f32.
TEST_F(TilesProject, PartsOfF32) {
    Context context = on_cpu(false, kKernel, 2);
    for (const bool by_columns : {false, true})
        for (const int64_t tokens : {5, 10}) {
            Product product(tokens, by_columns);
            product.x[3] = 1 + 0x1p-23f;  // has bits in all three
            run(context, product, 0);
            product.expect_right();
        }
    Product more(11, false);
    EXPECT_THROW(run(context, more, 0), Error);
}

TEST_F(TilesProject, AWorkspaceForManyTokensServesFewerAndABudgetIsKept) {
    Context context = on_cpu(false, kKernel, 2);
    const auto size = [&](const auto& product) {
        return stage_workspace<Stage::project>(product.args, context.env({}), 0);
    };
    for (const bool by_columns : {false, true}) {
        const size_t few = size(Product(10, by_columns));
        for (const int64_t tokens : {11, 32, 33, 1000}) EXPECT_GE(size(Product(tokens, by_columns)), few);
        EXPECT_GE(size(Bf16Product(64, 64, 97, by_columns, SMLA_F32)),
                  size(Bf16Product(32, 64, 97, by_columns, SMLA_F32)));
        Bf16Product product(9, 330, 97, by_columns, SMLA_F32);
        const size_t all = run_bf16(context, product, 0);
        EXPECT_LT(run_bf16(context, product, kWorkspaceHeader + 1), all);  // group by group
        product.expect_right(1);
    }
}

// What is not finite stays what it is, and stays in its row.
TEST_F(TilesProject, InfinitiesAndNaN) {
    Context context = on_cpu(false, kKernel);
    for (const bool by_columns : {false, true}) {
        Product product(6, by_columns);
        const auto weight = [&](int64_t n, int64_t k) -> uint16_t& {
            return product.w[size_t(n * product.args.w.stride_elems[1] + k * product.args.w.stride_elems[2])];
        };
        const float sign = product.x[size_t(2 * kInner + 7)] < 0 ? -1.f : 1.f;
        weight(9, 7) = f32_to_bf16(INFINITY);
        product.x[size_t(1 * kInner + 5)] = std::bit_cast<float>(0x7f800001u);  // NaN in its lowest bit alone
        product.x[size_t(3 * kInner + 5)] = INFINITY;
        run(context, product, 0);
        EXPECT_EQ(product.out[size_t(2 * kOuter + 9)], sign * INFINITY);
        for (int64_t n = 0; n < kOuter; ++n) {
            EXPECT_TRUE(std::isnan(product.out[size_t(kOuter + n)])) << n;
            EXPECT_FALSE(std::isfinite(product.out[size_t(3 * kOuter + n)])) << n;
            if (n == 9) continue;
            EXPECT_TRUE(std::isfinite(product.out[size_t(2 * kOuter + n)])) << n;
            EXPECT_TRUE(std::isinf(product.out[size_t(3 * kOuter + n)])) << n;
        }
    }
}

TEST(Bf16Project, ATokensBitsDependOnNothingElse) {
    if (!on_x86_with(SMLA_ISA_AVX512_BF16)) GTEST_SKIP() << "no AVX-512 bf16 here";
    Context context = on_cpu(true, "cpu_avx512_bf16_project", 2);
    Bf16Product all(523, 2082, 331, false, SMLA_F32), least(523, 2082, 331, false, SMLA_F32);
    const size_t most = run_bf16(context, all, 0), small = run_bf16(context, least, kWorkspaceHeader + 1);
    EXPECT_LT(small, most / 3);
    EXPECT_EQ(std::memcmp(all.f32.data(), least.f32.data(), all.f32.size() * sizeof(float)), 0);
    Bf16Product one(523, 2082, 331, false, SMLA_F32);
    const Tensor x = one.args.x, out = one.args.out;
    for (const int64_t t : {0, 5, 262, 522}) {
        one.args.x = slice(x, 0, t, t + 1);
        one.args.out = slice(out, 0, t, t + 1);
        run_bf16(context, one, 0);
        for (int64_t g = 0; g < Bf16Product::kGroups; ++g)
            EXPECT_EQ(std::memcmp(address(out, t, g), address(all.args.out, t, g), 331 * sizeof(float)), 0);
    }
}

}  // namespace
}  // namespace smla
