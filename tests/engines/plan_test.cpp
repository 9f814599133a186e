// Calls are planned once: kept plans give the same results, know another call from the same one, and serve
// many threads. The order of kernels follows the processor.
#include "core/cpu_features.h"
#include "engines/context.h"
#include "engines/run.h"
#include "kit/context_args.h"
#include "kit/refused.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace smla {
namespace {

smla_context_args on_cpu(int32_t threads = 1) { return kit::context_args(SMLA_ENGINE_CPU, threads); }

// 2 tokens, 3 rows of 8 f32 values, 2 listed rows each.
struct Attention {
    float q[16], keys[24], out[16];
    int32_t rows[4] = {0, 2, 1, 1};
    smla_attend_args args{};

    Attention() {
        for (int i = 0; i < 16; ++i) q[i] = float(i % 5) - 2;
        for (int i = 0; i < 24; ++i) keys[i] = float(i % 7) - 3;
        args.struct_size = sizeof args;
        args.softmax_scale = 0.5;
        args.q = make_tensor(q, SMLA_F32, {2, 1, 8});
        args.primary.cache.data = keys;
        args.primary.cache.format = SMLA_ROW_F32;
        args.primary.cache.width = 8;
        args.primary.cache.page_tokens = 3;
        args.primary.cache.pages = 1;
        args.primary.rows = make_tensor(rows, SMLA_I32, {2, 2});
        args.out = make_tensor(out, SMLA_F32, {2, 1, 8});
    }
};

TEST(CallPlans, TheSameCallHasTheSameBitsPlannedOrReplayed) {
    Context context(on_cpu());
    OwnedWorkspace workspace(context);
    Attention it;
    const Workspace scratch = workspace.at_least(stage_workspace<Stage::attend>(it.args, context.env({}), 0));
    run_stage<Stage::attend>(it.args, context.env(scratch));
    float first[16];
    std::memcpy(first, it.out, sizeof first);
    for (int i = 0; i < 3; ++i) {
        std::memset(it.out, 0xFF, sizeof it.out);
        run_stage<Stage::attend>(it.args, context.env(scratch));
        EXPECT_EQ(std::memcmp(first, it.out, sizeof first), 0);
    }
    Env anew = context.env(scratch);
    anew.plans = nullptr;
    std::memset(it.out, 0xFF, sizeof it.out);
    run_stage<Stage::attend>(it.args, anew);
    EXPECT_EQ(std::memcmp(first, it.out, sizeof first), 0);
}

TEST(CallPlans, AReplayedPlanReadsTheCallsOwnMemoryAndScale) {
    Context context(on_cpu());
    OwnedWorkspace workspace(context);
    Attention it, other;
    for (float& value : other.keys) value += 1;
    const Workspace scratch = workspace.at_least(1 << 20);
    run_stage<Stage::attend>(it.args, context.env(scratch));
    run_stage<Stage::attend>(other.args, context.env(scratch));
    EXPECT_NE(std::memcmp(it.out, other.out, sizeof it.out), 0);
    float before[16];
    std::memcpy(before, it.out, sizeof before);
    it.args.softmax_scale = 0.25;
    run_stage<Stage::attend>(it.args, context.env(scratch));
    EXPECT_NE(std::memcmp(before, it.out, sizeof before), 0);
}

TEST(CallPlans, AWrongCallIsRefusedAfterARightOne) {
    Context context(on_cpu());
    OwnedWorkspace workspace(context);
    Attention it;
    const Workspace scratch = workspace.at_least(1 << 20);
    run_stage<Stage::attend>(it.args, context.env(scratch));
    const auto field_of_error = [&](auto change, Workspace given) -> std::string {
        smla_attend_args wrong = it.args;
        change(wrong);
        return kit::refused_field([&] { run_stage<Stage::attend>(wrong, context.env(given)); });
    };
    EXPECT_EQ(field_of_error([](auto&) {}, scratch), "");
    EXPECT_EQ(field_of_error([](auto& a) { a.q.data = nullptr; }, scratch), "args.q.data");
    EXPECT_EQ(field_of_error([](auto& a) { a.q.data = static_cast<char*>(a.q.data) + 1; }, scratch),
              "args.q.data");
    EXPECT_EQ(field_of_error([](auto& a) { a.softmax_scale = 0; }, scratch), "args.softmax_scale");
    EXPECT_EQ(field_of_error([](auto& a) { a.out.data = a.q.data; }, scratch), "args.out.data");
    EXPECT_EQ(field_of_error([](auto& a) { a.q.device_type = SMLA_CUDA; }, scratch), "args.q.device");
    EXPECT_EQ(field_of_error([](auto&) {}, {scratch.data, kWorkspaceHeader}), "workspace.bytes");
}

// A scale behind a pointer is looked at in every call.
TEST(CallPlans, AScaleInTheHostsMemoryThatBecomesWrongIsRefused) {
    Context context(on_cpu());
    char codes[512] = {};
    float scale = 1, rows[512] = {};
    int32_t table = 0, cu[2] = {0, 1};
    smla_gather_args args{};
    args.struct_size = sizeof args;
    args.cache.data = codes;
    args.cache.format = SMLA_FP8_512;
    args.cache.page_tokens = 1;
    args.cache.pages = 1;
    args.cache.scale_device = &scale;
    args.block_table = make_tensor(&table, SMLA_I32, {1, 1});
    args.cu = make_tensor(cu, SMLA_I32, {2});
    args.out = make_tensor(rows, SMLA_F32, {1, 512});
    run_stage<Stage::gather>(args, context.env({}));
    scale = 0;
    EXPECT_THROW(run_stage<Stage::gather>(args, context.env({})), Error);
    scale = 2;
    codes[3] = 0x38;  // 1 in e4m3
    run_stage<Stage::gather>(args, context.env({}));
    EXPECT_EQ(rows[3], 2);
}

// A cache need not have the padding of its last page: what lies there may be another tensor's.
TEST(CallPlans, AnOutputMayLieWhereThePaddingOfTheLastPageWouldBe) {
    Context context(on_cpu());
    std::vector<float> memory(4096);
    int32_t table = 0, cu[2] = {0, 2};
    smla_gather_args args{};
    args.struct_size = sizeof args;
    args.cache.data = memory.data();
    args.cache.format = SMLA_FP8_584;
    args.cache.page_tokens = 2;  // 1168 bytes, padded to 1728
    args.cache.pages = 1;
    args.block_table = make_tensor(&table, SMLA_I32, {1, 1});
    args.cu = make_tensor(cu, SMLA_I32, {2});
    args.out = make_tensor(memory.data() + 1168 / 4, SMLA_F32, {2, 512});
    run_stage<Stage::gather>(args, context.env({}));
    args.out.data = memory.data() + 1168 / 4 - 1;
    EXPECT_THROW(run_stage<Stage::gather>(args, context.env({})), Error);
}

TEST(CallPlans, ManyThreadsAndManyShapesShareAContext) {
    Context context(on_cpu());
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            std::vector<float> x(4096, 1), out(4096);
            for (int i = 0; i < 3000; ++i) {
                const int64_t width = 1 + (i * 7 + t) % 1500;  // more shapes than are kept
                smla_norm_args args{};
                args.struct_size = sizeof args;
                args.eps = 1e-6;
                args.x = make_tensor(x.data(), SMLA_F32, {1, 1, width});
                args.out = make_tensor(out.data(), SMLA_F32, {1, 1, width});
                run_stage<Stage::norm>(args, context.env({}));
                if (std::abs(out[size_t(width - 1)] - 1) > 1e-5f) ++wrong;
                out[size_t(width - 1)] = 0;
            }
        });
    for (std::thread& each : threads) each.join();
    EXPECT_EQ(wrong, 0);
}

TEST(CallPlans, ADemandMadeLaterIsNotAnsweredByAnOldPlan) {
    Context context(on_cpu());
    Attention it;
    OwnedWorkspace workspace(context);
    Env env = context.env(workspace.at_least(1 << 20));
    const std::string first = run_stage<Stage::attend>(it.args, env);
    env.demanded[size_t(Stage::attend)] = "cpu_no_such_attend";
    EXPECT_THROW(run_stage<Stage::attend>(it.args, env), Error);
    EXPECT_EQ(run_stage<Stage::attend>(it.args, context.env(workspace.at_least(1 << 20))), first);
}

struct Row {
    const char* name;
    Support answer;
};

TEST(KernelOrder, TheFirstKernelWithoutAReasonForLowerPriorityRuns) {
    const auto chosen = [](const std::vector<Row>& table, const char* demanded = "") {
        Env env;
        env.demanded[size_t(Stage::attend)] = demanded;
        const auto choice = choose(std::span<const Row>(table), Stage::attend, env,
                                   [](const Row& row) { return row.answer; });
        return std::string(choice.kernel ? choice.kernel->name : "none");
    };
    const Row no{"no", {"wants more"}}, slow{"slow", {"", "slow here"}}, slower{"slower", {"", "slower"}},
        good{"good", {}}, last{"last", {}};
    EXPECT_EQ(chosen({no, slow, good, last}), "good");
    EXPECT_EQ(chosen({good, slow}), "good");
    EXPECT_EQ(chosen({no, slow, slower}), "slow");
    EXPECT_EQ(chosen({no}), "none");
    EXPECT_EQ(chosen({}), "none");
    EXPECT_EQ(chosen({no, slow, good}, "slow"), "slow");
    EXPECT_EQ(chosen({no, slow, good}, "no"), "none");
}

template <Stage S>
std::vector<std::string> order(const ArgsOf<S>& args, bool slow_bf16_dots) {
    Env env;
    env.isa = SMLA_ISA_AVX512_BF16;
    env.slow_bf16_dots = slow_bf16_dots;
    std::vector<std::string> out;
    for (const Verdict& each : explain_stage<S>(args, env)) {
        out.push_back(each.kernel);
        const bool bf16 = each.kernel.find("_bf16_") != std::string::npos;
        EXPECT_EQ(each.lower_priority.empty(), !(slow_bf16_dots && bf16)) << each.kernel;
        if (each.chosen) out.insert(out.begin(), each.kernel);
    }
    return out;
}

#if defined(__x86_64__)
smla_attend_args attend_of_v32() {  // without data
    smla_attend_args attend{};
    attend.q = make_tensor(static_cast<void*>(nullptr), SMLA_BF16, {1, 128, 576});
    attend.out = make_tensor(static_cast<void*>(nullptr), SMLA_BF16, {1, 128, 512});
    attend.primary.cache.format = SMLA_FP8_656;
    attend.primary.cache.page_tokens = 64;
    attend.primary.rows = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {1, 2048});
    return attend;
}

TEST(KernelOrder, WhereBf16DotsAreSlowF32KernelsComeFirst) {
    const smla_attend_args attend = attend_of_v32();
    EXPECT_EQ(order<Stage::attend>(attend, false).front(), "cpu_avx512_bf16_attend");
    const auto slow = order<Stage::attend>(attend, true);
    EXPECT_EQ(slow.front(), "cpu_avx512_f32_attend");
    EXPECT_EQ(slow.back(), "cpu_avx512_bf16_attend");
    EXPECT_EQ(slow.size(), order<Stage::attend>(attend, false).size());
}

TEST(KernelOrder, AContextTakesTheFactsOfItsProcessor) {
    EXPECT_EQ(Context(on_cpu()).env({}).slow_bf16_dots, slow_bf16_dots());
}

smla_score_args score_of_v32() {  // without data
    smla_score_args score{};
    score.q = make_tensor(static_cast<void*>(nullptr), SMLA_E4M3, {1, 64, 128});
    score.w = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {1, 64});
    score.logits = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {1, 4096});
    score.keys.format = SMLA_INDEX_FP8_132;
    score.keys.width = 128;
    score.keys.page_tokens = 64;
    return score;
}

template <Stage S>
void expect_refusal_for_want_of_permission(const ArgsOf<S>& args, const std::string& kernel) {
    Env env;
    env.isa = SMLA_ISA_AMX;
    int refused = 0, chosen = 0;
    for (const Verdict& each : explain_stage<S>(args, env)) {
        chosen += each.chosen && !each.kernel.starts_with("cpu_amx_");
        if (each.kernel != kernel) continue;
        EXPECT_EQ(each.refusal, why_no_tiles());
        EXPECT_NE(each.refusal.find("permission for tile data"), std::string::npos) << each.refusal;
        ++refused;
    }
    EXPECT_EQ(refused, 1) << kernel;
    EXPECT_EQ(chosen, 1) << kernel;
}

// Where the operating system gives no permission, for want of tiles or of goodwill, the others are taken.
TEST(KernelOrder, WithoutPermissionForTilesTheirKernelsRefuse) {
    if (why_no_tiles().empty()) GTEST_SKIP() << "this process may use tiles";
    expect_refusal_for_want_of_permission<Stage::attend>(attend_of_v32(), "cpu_amx_attend");
    expect_refusal_for_want_of_permission<Stage::score>(score_of_v32(), "cpu_amx_score");
}
#endif

}  // namespace
}  // namespace smla
