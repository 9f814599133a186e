// project through CBLAS: weights of 16 bits are widened in blocks of rows, whose size follows the tokens and
// the budget. Random problems of the kit are too small for a second block.
#include "core/numbers.h"
#include "engines/context.h"
#include "engines/run.h"
#include "linear/cblas.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace smla {
namespace {

constexpr int64_t kInner = 5000, kOuter = 130;  // 52 rows are a block of few tokens

Context on_cpu(bool batch_invariant) {
    smla_context_args args{};
    args.struct_size = sizeof args;
    args.version = SMLA_VERSION;
    args.engine = SMLA_ENGINE_CPU;
    args.threads = 1;
    args.batch_invariant = batch_invariant;
    args.kernel = "project=cpu_cblas_project";
    return Context(args);
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

}  // namespace
}  // namespace smla
