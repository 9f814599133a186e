// The attend kernels for Hopper against the oracle of tests/attend: heads that fill no block, holes, lengths,
// empty tiles, splits, sinks, NaN, scales and queries of any size, scratch between canaries, the same bits
// twice.
#include "engines/cuda/attend/run.h"
#include "gpu/attend_problem.h"
#include "kit/rounded_key.h"

namespace {

using namespace smla;
using namespace attend_test;
using namespace gpu;

class Sm90Attend : public CudaAttend {
protected:
    void SetUp() override {
        CudaAttend::SetUp();
        if (IsSkipped()) return;
        const int capability = make_context(false, nullptr).device().facts().capability;
        if (capability != 90) GTEST_SKIP() << "for sm_90, here is sm_" << capability;
    }
};

bool has_one_scale(smla_format format) { return format == SMLA_FP8_576 || format == SMLA_FP8_512; }
bool few_takes(smla_format format) { return has_one_scale(format) || kit::becomes_f16(format); }
bool many_takes(smla_format format, int64_t heads) {
    return heads > (kit::becomes_f16(format) ? 32 : 16) && !has_one_scale(format);
}

// As it cuts the work itself, unsplit, and batch invariant, then also a token at a time.
void check_kernel(Problem& problem, const std::string& kernel, const Expected& expected) {
    const std::string demand = "attend=" + kernel;
    for (const bool invariant : {false, true}) {
        Context context = make_context(invariant, demand.c_str());
        check_one(context, problem, expected, 0, kernel.c_str());
        check_one(context, problem, expected, kWorkspaceHeader, kernel.c_str());
    }
}
// By each kernel that takes it. With few heads per block no key is rounded.
void check_sm90(Problem& problem, KeyType keys = KeyType::f16) {
    const smla_format format = problem.spec.primary.format;
    if (few_takes(format)) {
        problem.args.precision = SMLA_PRECISION_EXACT;
        check_kernel(problem, "cuda_sm90_raw_attend", oracle(problem, KeyType::exact));
        problem.args.precision = problem.spec.precision;
    }
    if (many_takes(format, problem.spec.heads))
        check_kernel(problem, "cuda_sm90_attend", oracle(problem, keys));
}
void check_sm90(const Spec& spec) {
    Problem problem(spec);
    check_sm90(problem);
}

struct Keys {
    smla_format format;
    int64_t width;
    bool extra;  // a second cache too
};
constexpr Keys kKinds[] = {
    {SMLA_FP8_656, 576, false}, {SMLA_ROW_BF16, 576, false}, {SMLA_ROW_BF16, 576, true},
    {SMLA_ROW_BF16, 512, true}, {SMLA_FP8_584, 512, true},   {SMLA_FP8_584, 512, false},
    {SMLA_FP8_528, 512, false}, {SMLA_FP8_576, 576, false},  {SMLA_FP8_512, 512, false}};

bool has_scales(smla_format format) {  // in its records
    return format == SMLA_FP8_584 || kit::becomes_f16(format);
}
bool takes(const Keys& keys, int heads) { return few_takes(keys.format) || many_takes(keys.format, heads); }

Spec spec_of(const Keys& keys, int heads, SourceSpec primary, uint32_t seed = 1) {
    primary.format = keys.format;
    SourceSpec extra;
    if (keys.extra) {
        extra = primary;
        extra.k = primary.k + 77;
    }
    return {.tokens = 3,
            .heads = heads,
            .width = keys.width,
            .primary = primary,
            .extra = extra,
            .precision = SMLA_PRECISION_ROUNDED,
            .sink = seed % 2 == 0,
            .seed = seed};
}

TEST_F(Sm90Attend, HeadsRowsAndOutputs) {
    uint32_t seed = 1;
    for (const Keys& keys : kKinds)
        for (const int heads : {1, 7, 16, 17, 32, 33, 65, 128, 256})
            for (const int64_t k : {1, 64, 65, 700}) {
                if (!takes(keys, heads)) continue;
                Spec spec = spec_of(keys, heads, {.k = k}, ++seed);
                spec.out = seed % 3 == 0 ? SMLA_BF16 : seed % 3 == 1 ? SMLA_F16 : SMLA_F32;
                check_sm90(spec);
                if (HasFatalFailure()) return;
            }
}

TEST_F(Sm90Attend, ManyTasksOfOneBlock) {
    uint32_t seed = 10;
    for (const Keys& keys : kKinds)
        for (const int heads : {16, 32, 64, 128}) {
            ++seed;
            if (!takes(keys, heads)) continue;
            Spec spec = spec_of(keys, heads, hostile(keys.format, seed % 3 ? 130 : 1), seed);
            spec.tokens = 140;
            check_sm90(spec);
            if (HasFatalFailure()) return;
        }
}

TEST_F(Sm90Attend, HolesLengthsSinks) {
    uint32_t seed = 20;
    for (const Keys& keys : kKinds)
        for (const int heads : {5, 24, 40, 64, 130})
            for (const int64_t k : {1, 640})
                for (const double holes : {0.3, 0.9, 0.9995}) {
                    if (!takes(keys, heads)) continue;
                    SourceSpec source = hostile(keys.format, k);
                    source.holes = holes;
                    Spec spec = spec_of(keys, heads, source, ++seed);
                    spec.base = seed % 3 ? SMLA_LSE_LN : SMLA_LSE_LOG2;
                    spec.head_padding = 2;
                    check_sm90(spec);
                    if (HasFatalFailure()) return;
                }
}

TEST_F(Sm90Attend, Edges) {
    for (const Keys& keys : kKinds)
        for (const int heads : {8, 32, 64, 128}) {
            if (!takes(keys, heads)) continue;
            check_sm90(spec_of(keys, heads, hostile(keys.format, 3000), 2));
            check_sm90(spec_of(keys, heads, {.k = 0}, 2));
            check_sm90(spec_of(keys, heads, {.k = 70, .pages = 0}));
            Problem nan(spec_of(keys, heads, {.k = 300, .pages = 16}));
            std::vector<float> values(size_t(keys.width), std::numeric_limits<float>::quiet_NaN());
            const int32_t victim = nan.row(1, 123);
            nan.view(false).encode(victim, values.data());
            for (const int64_t t : {0, 2})
                for (int64_t j = 0; j < 300; ++j)
                    if (nan.row(t, j) == victim) nan.row(t, j) = -1;
            check_sm90(nan);
            if (HasFatalFailure()) return;
        }
}

TEST_F(Sm90Attend, ScalesOfAnySize) {
    for (const Keys& keys : kKinds)
        for (const int heads : {16, 32, 64, 128}) {
            if (!has_scales(keys.format) || keys.extra || !takes(keys, heads)) continue;
            Problem problem(spec_of(keys, heads, hostile(keys.format, 300), uint32_t(heads)));
            scatter_scales(problem);
            check_sm90(problem, KeyType::bf16);
            if (HasFatalFailure()) return;
        }
}

// Blocks that have done many tasks before one, or before their last, meets a scale that f16 does not hold.
// All scales are powers of two, so that both types have the same keys.
TEST_F(Sm90Attend, AFewScalesThatF16DoesNotHold) {
    for (const int heads : {16, 32, 64, 128})
        for (const std::vector<int64_t>& tokens : {std::vector<int64_t>{0}, {149}, {7, 133}}) {
            Spec spec = spec_of(kKinds[0], heads, {.k = 66}, uint32_t(heads));
            spec.tokens = 150;
            Problem problem(spec);
            const std::vector<int32_t> bad = {5, 70};
            for (int64_t t = 0; t < spec.tokens; ++t)
                for (int64_t j = 0; j < spec.primary.k; ++j)
                    if (std::ranges::count(bad, problem.row(t, j))) problem.row(t, j) = -1;
            for (size_t i = 0; i < tokens.size(); ++i) problem.row(tokens[i], 60) = bad[i];
            set_scales(problem, [&](int64_t row) {
                return std::ranges::count(bad, row) ? (row == 70 ? -40 : 2) : int(row % 20) - 20;
            });
            check_sm90(problem, KeyType::bf16);
            if (HasFatalFailure()) return;
        }
}

// f16 weights times such scales would be 0.
TEST_F(Sm90Attend, ScalesThatAreAllSmall) {
    for (const Keys& keys : kKinds)
        for (const int heads : {16, 32}) {
            if (!kit::becomes_f16(keys.format)) continue;
            Problem problem(spec_of(keys, heads, {.k = 300}, uint32_t(heads)));
            set_scales(problem, [](int64_t row) { return int(row % 3) - 30; });
            check_sm90(problem);
            if (HasFatalFailure()) return;
        }
}

TEST_F(Sm90Attend, QueriesAndLogitsOfAnySize) {
    for (const Keys& keys : kKinds)
        for (const int heads : {16, 32, 64, 128}) {
            if (!takes(keys, heads)) continue;
            Problem problem(spec_of(keys, heads, hostile(keys.format, 200), uint32_t(heads)));
            scatter_queries(problem);
            check_sm90(problem);
            if (HasFatalFailure()) return;
            for (const double scale : {1e-38, 1e-9}) {
                Problem small(spec_of(keys, heads, hostile(keys.format, 70), uint32_t(heads)));
                small.args.softmax_scale = scale;
                check_sm90(small);
            }
        }
}

// Every block shape of the kernel over raw records.
void check_raw_blocks(Context& context, Problem& problem, const Expected& expected) {
    const std::string kernel = "cuda_sm90_raw_attend";
    for (const cuda_attend::BlockShape& shape : cuda_attend::block_shapes())
        for (const int splits : {1, 3}) {
            if (shape.kernel != kernel) continue;
            const cuda_attend::Schedule plan{.shape = &shape,
                                             .tokens = problem.spec.tokens,
                                             .all_heads = problem.spec.heads,
                                             .splits = splits};
            SCOPED_TRACE(text(shape.heads, " heads, ", shape.warpgroups, " warpgroups, ", splits,
                              " splits: ", problem.spec.name()));
            check_runs(context, problem, expected, kernel.c_str(), [&](const smla_attend_args& args) {
                const kit::Scratch scratch(context.device(), plan.workspace());
                context.init_workspace(scratch.get(), nullptr);
                const Device::Scope scope(context.device());
                cuda_attend::run_sm90_raw(args, plan, context.env(scratch.get()));
                context.device().wait(nullptr);
                ASSERT_EQ(scratch.complaint(), "");
            });
            if (testing::Test::HasFatalFailure()) return;
        }
}

TEST_F(Sm90Attend, EveryBlockOverRawRecords) {
    Context context = make_context(false, nullptr);
    uint32_t seed = 40;
    for (const Keys& keys : kKinds)
        for (const int64_t heads : {3, 16, 45, 130})
            for (const int64_t k : {0, 40, 300, 2100}) {
                if (!few_takes(keys.format)) continue;
                Spec spec =
                    spec_of(keys, int(heads), k ? hostile(keys.format, k) : SourceSpec{.k = 0}, ++seed);
                const bool scattered = k == 300 && has_scales(keys.format);  // f16 overflows there
                spec.out = seed % 3 == 0 ? SMLA_BF16 : seed % 3 == 1 && !scattered ? SMLA_F16 : SMLA_F32;
                Problem problem(spec);
                if (scattered) scatter_scales(problem);
                problem.args.precision = SMLA_PRECISION_EXACT;
                check_raw_blocks(context, problem, oracle(problem, KeyType::exact));
                if (HasFatalFailure()) return;
            }
}

// Calls that a kernel does not take are refused with a reason. Of calls that both take, the faster kernel
// comes first, and the other one says why it does not.
TEST_F(Sm90Attend, RefusesWhatItDoesNotTake) {
    Context context = make_context(false, nullptr), invariant = make_context(true, nullptr);
    const auto verdict = [&](const char* kernel, Spec spec, Context& of) {
        Problem problem(spec);
        const auto all = explain_stage<Stage::attend>(OnDevice(of.device(), problem).args, of.env({}));
        return *std::ranges::find(all, kernel, &Verdict::kernel);
    };
    const auto few = [&](const Spec& spec) { return verdict("cuda_sm90_raw_attend", spec, context); };
    const auto many = [&](const Spec& spec) { return verdict("cuda_sm90_attend", spec, context); };
    const auto names = [](const std::string& reason, const char* what) {
        return reason.find(what) != std::string::npos;
    };
    const Spec good = spec_of(kKinds[0], 64, {.k = 2000});
    EXPECT_EQ(few(good).refusal, "");
    EXPECT_EQ(many(good).refusal, "");
    Spec bad = good;
    bad.precision = SMLA_PRECISION_EXACT;
    EXPECT_TRUE(few(bad).chosen);
    EXPECT_TRUE(names(many(bad).refusal, "precision")) << many(bad).refusal;
    bad = good, bad.heads = 16;
    EXPECT_TRUE(few(bad).chosen);
    EXPECT_TRUE(names(many(bad).refusal, "heads")) << many(bad).refusal;
    bad.primary.format = SMLA_ROW_BF16;
    EXPECT_TRUE(names(few(bad).refusal, "fp8_656")) << few(bad).refusal;
    bad = good, bad.primary.format = SMLA_FP8_576;
    EXPECT_TRUE(few(bad).chosen);
    EXPECT_TRUE(names(many(bad).refusal, "fp8_656")) << many(bad).refusal;
    bad = good, bad.tokens = 2;
    EXPECT_TRUE(few(bad).chosen);
    EXPECT_TRUE(names(many(bad).lower_priority, "cuda_sm90_raw_attend is faster"))
        << many(bad).lower_priority;
    EXPECT_TRUE(verdict("cuda_sm90_attend", bad, invariant).chosen);
    bad.tokens = 128;
    EXPECT_TRUE(many(bad).chosen);
    EXPECT_TRUE(names(few(bad).lower_priority, "cuda_sm90_attend is faster")) << few(bad).lower_priority;
    bad = good, bad.primary.format = SMLA_ROW_BF16, bad.tokens = 2;  // it takes them, but another does first
    EXPECT_EQ(many(bad).refusal, "");
    EXPECT_TRUE(names(many(bad).lower_priority, "cuda_mma_attend is faster")) << many(bad).lower_priority;
    bad.tokens = 8;
    EXPECT_TRUE(many(bad).chosen);
    bad.heads = 32;  // half of each block would idle
    EXPECT_TRUE(names(many(bad).lower_priority, "cuda_mma_attend is faster")) << many(bad).lower_priority;
    bad.tokens = 64;
    EXPECT_TRUE(many(bad).chosen);
}

}  // namespace
