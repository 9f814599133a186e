// Workspace sizes of the CUDA engine: one that is sized with the largest step serves every smaller one, and
// no worse than one of its own (contract 7c, 7d).
#include "engines/cuda/attend/schedule.h"
#include "engines/run.h"
#include "support.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

constexpr int64_t kTokens[] = {0,   1,   2,   3,    5,    8,    16,   31,   32,  33,  64,
                               67,  99,  100, 128,  131,  132,  133,  199,  256, 257, 300,
                               512, 700, 999, 1000, 1030, 1147, 2048, 4096, 8192};

smla_cache pages_of(smla_format format, int32_t width) {
    smla_cache cache{};
    cache.format = format;
    cache.width = width;
    cache.page_tokens = cache.page_rows = 64;
    cache.pages = 4096;
    cache.data = reinterpret_cast<void*>(uintptr_t(1) << 20);
    cache.device_type = SMLA_CPU;
    return cache;
}

struct AttendCase {
    smla_format format;
    int32_t width;
    int64_t heads, listed, extra;
};
constexpr AttendCase kAttend[] = {
    {SMLA_ROW_BF16, 576, 128, 2048, 0}, {SMLA_FP8_656, 576, 128, 2048, 0}, {SMLA_FP8_656, 576, 64, 2048, 0},
    {SMLA_FP8_656, 576, 16, 2048, 0},   {SMLA_FP8_656, 576, 1, 100, 0},    {SMLA_ROW_BF16, 576, 40, 8192, 0},
    {SMLA_FP8_584, 512, 128, 128, 512}, {SMLA_FP8_584, 512, 5, 128, 1024}, {SMLA_NVFP4_288, 512, 64, 512, 0},
    {SMLA_FP8_528, 512, 33, 2051, 0},   {SMLA_ROW_BF16, 512, 64, 0, 0},
};

smla_attend_args attend_call(const AttendCase& of, int64_t tokens) {
    smla_attend_args args{};
    args.struct_size = sizeof args;
    args.softmax_scale = 1;
    args.precision = SMLA_PRECISION_ROUNDED;
    args.q = shaped(SMLA_BF16, {tokens, of.heads, of.width});
    args.out = shaped(SMLA_BF16, {tokens, of.heads, 512});
    args.primary.cache = pages_of(of.format, of.width);
    args.primary.rows = shaped(SMLA_I32, {tokens, of.listed});
    if (of.extra) {
        args.extra.cache = pages_of(of.format, of.width);
        args.extra.rows = shaped(SMLA_I32, {tokens, of.extra});
    }
    return args;
}

smla_select_args select_call(int64_t tokens, int64_t columns, int64_t k) {
    smla_select_args args{};
    args.struct_size = sizeof args;
    args.scores = shaped(SMLA_F32, {tokens, columns});
    args.indices = shaped(SMLA_I32, {tokens, k});
    return args;
}

smla_score_select_args score_select_call(int64_t tokens, int64_t columns, int64_t k) {
    smla_score_select_args args{};
    args.struct_size = sizeof args;
    args.score.struct_size = sizeof args.score;
    args.score.q = shaped(SMLA_E4M3, {tokens, 64, 128});
    args.score.w = shaped(SMLA_F32, {tokens, 64});
    args.score.keys = pages_of(SMLA_INDEX_FP8_132, 128);
    args.select.indices = shaped(SMLA_I32, {tokens, k});
    args.columns = columns;
    return args;
}

smla_score_select_blocks_args blocks_call(int64_t tokens, int64_t columns, int64_t blocks) {
    smla_score_select_blocks_args args{};
    args.struct_size = sizeof args;
    args.columns = columns;
    args.block_size = 8;
    args.q = shaped(SMLA_E4M3, {tokens, 32, 128});
    args.w = shaped(SMLA_F32, {tokens, 32});
    args.keys = pages_of(SMLA_INDEX_FP8_132, 128);
    args.ends = shaped(SMLA_I32, {tokens});
    if (blocks) args.blocks = shaped(SMLA_I32, {tokens, blocks});
    args.indices = shaped(SMLA_I32, {tokens, 512});
    return args;
}

// `call(tokens)` at every number of tokens, within a budget and without: the size never shrinks, and with the
// largest workspace each kernel plans what it plans with one of its own.
template <Stage S, class Call>
void expect_sizes_serve_fewer_tokens(const Call& call, const Env& env, const std::string& what) {
    for (const size_t budget : {size_t(0), size_t(3) << 20, size_t(64) << 20}) {
        size_t largest = 0;
        for (const int64_t tokens : kTokens) {
            const size_t bytes = stage_workspace<S>(call(tokens), env, budget);
            EXPECT_GE(bytes, largest) << what << ", " << tokens << " tokens, budget " << budget;
            largest = bytes;
        }
        for (const int64_t tokens : kTokens)
            for (const auto& kernel : cuda_candidates<S>()) {
                const auto own = kernel.plan(call(tokens), env.with_budget(budget));
                const auto in_largest = kernel.plan(call(tokens), env.with_budget(largest));
                if (!own.refusal.empty()) continue;
                EXPECT_EQ(in_largest.scratch, own.scratch) << what << ", " << kernel.name << ", " << tokens;
                EXPECT_LE(in_largest.scratch, largest) << what << ", " << kernel.name << ", " << tokens;
            }
    }
}

TEST(CudaWorkspace, AttendSizedForManyTokensServesFewer) {
    FactsOnly device;
    for (const bool batch_invariant : {false, true}) {
        Env env = facts_env(device);
        env.batch_invariant = batch_invariant;
        for (const AttendCase& each : kAttend)
            expect_sizes_serve_fewer_tokens<Stage::attend>(
                [&](int64_t tokens) { return attend_call(each, tokens); }, env,
                text(find_format(each.format)->name, ", ", each.heads, " heads, ", each.listed, " rows, ",
                     batch_invariant ? "batch-invariant" : "any bits"));
    }
}

TEST(CudaWorkspace, SelectionsSizedForManyTokensServeFewer) {
    FactsOnly device;
    const Env env = facts_env(device);
    for (const int64_t columns : {int64_t(100), int64_t(9000), int64_t(65536), int64_t(200000)}) {
        const std::string what = text(columns, " columns");
        expect_sizes_serve_fewer_tokens<Stage::select>(
            [&](int64_t tokens) { return select_call(tokens, columns, 2048); }, env, what);
        expect_sizes_serve_fewer_tokens<Stage::score_select>(
            [&](int64_t tokens) { return score_select_call(tokens, columns, 2048); }, env, what);
        for (const int64_t blocks : {0, 64})
            expect_sizes_serve_fewer_tokens<Stage::score_select_blocks>(
                [&](int64_t tokens) { return blocks_call(tokens, columns, blocks); }, env, what);
    }
}

// Decodes keep their splits in a workspace that was sized with a prefill.
TEST(CudaWorkspace, ADecodeIsSplitInTheWorkspaceOfAPrefill) {
    FactsOnly device;
    const Env env = facts_env(device);
    const size_t prefill = stage_workspace<Stage::attend>(attend_call(kAttend[0], 4096), env, 0);
    size_t split = 0;
    for (const auto& kernel : cuda_candidates<Stage::attend>())
        split = std::max(split, kernel.plan(attend_call(kAttend[0], 1), env.with_budget(prefill)).scratch);
    EXPECT_GT(split, size_t(1) << 20);
}

// Batch-invariant calls keep their splits whatever the budget, and are cut into launches.
TEST(CudaWorkspace, BatchInvariantAttendIsCutIntoLaunchesThatFitTheBudget) {
    FactsOnly device;
    Env env = facts_env(device);
    env.batch_invariant = true;
    const AttendCase& of = kAttend[0];
    for (const size_t budget : {size_t(0), size_t(1), size_t(5) << 20, size_t(64) << 20}) {
        const size_t bytes = stage_workspace<Stage::attend>(attend_call(of, 4096), env, budget);
        const size_t one = stage_workspace<Stage::attend>(attend_call(of, 1), env, budget);
        EXPECT_LE(bytes, std::max(one, budget ? budget : size_t(160) << 20)) << budget;
        EXPECT_GT(one, kWorkspaceHeader) << "one token is split, too";
    }
}

TEST(CudaWorkspace, LaunchesOfACallCoverEachTokenOnce) {
    smla_attend_args args = attend_call(kAttend[6], 10);
    std::vector<uint16_t> q(10 * 128 * 512);
    args.q.data = q.data();
    args.lse = shaped(SMLA_F32, {10, 128});
    args.sink = shaped(SMLA_F32, {128});
    for (const int64_t most : {1, 3, 5, 9, 10, 11}) {
        cuda_attend::Schedule schedule;
        schedule.tokens = std::min<int64_t>(most, 10);
        int64_t next = 0;
        cuda_attend::each_launch(args, schedule, [&](const smla_attend_args& part, const auto& cut) {
            EXPECT_LE(cut.tokens, most);
            for (const smla_tensor* each :
                 {&part.q, &part.out, &part.lse, &part.primary.rows, &part.extra.rows})
                EXPECT_EQ(each->shape[0], cut.tokens);
            EXPECT_EQ(part.sink.shape[0], 128);
            EXPECT_EQ(part.primary.lengths.ndim, 0) << "absent stays absent";
            EXPECT_EQ(static_cast<uint16_t*>(part.q.data) - q.data(), next * 128 * 512);
            next += cut.tokens;
        });
        EXPECT_EQ(next, 10) << most;
    }
}

TEST(CudaScoreSelect, SelectsWithTheDemandedKernel) {
    FactsOnly device;
    const auto plan = [&](const char* kernel, int64_t tokens, int64_t columns, size_t budget = 0) {
        Env env = facts_env(device);
        env.demanded[size_t(Stage::select)] = kernel;
        env.budget = budget;
        return cuda_candidates<Stage::score_select>().front().plan(score_select_call(tokens, columns, 512),
                                                                   env);
    };
    for (const char* kernel : {"", "cuda_register_select", "cuda_sampled_select", "cuda_generic_select"})
        EXPECT_EQ(plan(kernel, 4, 8192).refusal, "") << kernel;
    EXPECT_EQ(plan("cuda_register_select", 4, 65536).refusal,
              "cuda_register_select does not support tiles of 4 tokens and 65536 columns");
    EXPECT_EQ(plan("cuda_sampled_select", 1, 131072).scratch, plan("", 1, 131072).scratch);
    EXPECT_LT(plan("cuda_generic_select", 1, 131072).scratch, plan("", 1, 131072).scratch)
        << "only cuda_sampled_select splits rows";
    // Parts of columns: what was kept of earlier ones takes part in the next selection.
    const size_t half = 4 * 4096 + kWorkspaceHeader;
    ASSERT_EQ(plan("cuda_generic_select", 1, 8192, half).refusal, "");
    EXPECT_NE(plan("cuda_register_select", 1, 8192, half).refusal, "");
}

}  // namespace
}  // namespace smla
