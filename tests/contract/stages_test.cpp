// What holds for every stage: lines 5 (poison), 6 (no tokens), 7 (workspace), 8 (same bits) and 10 (what is
// written).
#include "calls.h"
#include "kit/interrupt.h"

#include <cmath>

namespace contract {
namespace {

// body(call, engine) for every kind of call on every engine.
template <class Body>
void on_every_call(int64_t tokens, const Body& body) {
    for (const NamedMaker& maker : all_calls()) {
        const std::unique_ptr<Call> call = make(maker, tokens);
        for (const Engine& engine : engines()) {
            SCOPED_TRACE(call->name + " on " + engine.name);
            call->memory.reset();
            body(*call, engine);
            if (testing::Test::HasFatalFailure()) return;
        }
    }
}

std::vector<uint8_t> result(Call& call, const Context& context, size_t budget = 0) {
    call.memory.reset();
    run_exactly(call, context, budget);
    return call.memory.image();
}
std::vector<uint8_t> result(Call& call, const Engine& engine, const Options& options, size_t budget = 0) {
    return result(call, Context(engine, options), budget);
}

CONTRACT_TEST(L5a_PoisonAroundBetweenAndBehindInputsNeverReachesAnOutput) {
    on_every_call(7, [](Call& call, const Engine& engine) {
        for (const TensorField& field : call.tensors)  // so that a NaN in an output was written there
            if (call.is_output(field) && field.tensor->dtype != SMLA_E2M1) zero(*field.tensor);
        const Context context(engine);
        run_exactly(call, context);
        for (const TensorField& field : call.tensors)
            if (call.is_output(field)) {
                EXPECT_FALSE(has_nan(*field.tensor)) << field.name;
            }
    });
}

CONTRACT_TEST(L6e_NoTokensIsACallThatDoesNothing) {
    on_every_call(0, [](Call& call, const Engine& engine) {
        const Context context(engine);
        run_exactly(call, context);
        EXPECT_TRUE(call.memory.nothing_changed());
    });
}

CONTRACT_TEST(L7a_TheWorkspaceAskedForIsEnoughAndItsCountersStayZero) {
    on_every_call(9, [](Call& call, const Engine& engine) {
        const Context context(engine);
        std::vector<uint8_t> images[2];
        for (const uint8_t dirt : {uint8_t(0xFF), uint8_t(0x00)}) {
            const Scratch scratch(context, call.workspace(context), dirt);
            call.memory.reset();
            ASSERT_TRUE(succeeded(call.run(context, scratch.get())));
            EXPECT_TRUE(scratch.clean());
            images[dirt ? 1 : 0] = call.memory.image();
        }
        EXPECT_TRUE(images[0] == images[1]) << "what the scratch held before shows";
    });
}

CONTRACT_TEST(L7h_ACallThatItsCallerEndsLeavesContextAndWorkspaceUsable) {
    CONTRACT_SKIP_ON_GPU("its calls return before their kernels run");
    on_every_call(9, [](Call& call, const Engine& engine) {
        const Context context(engine);
        const Scratch scratch(context, call.workspace(context));
        const auto run = [&](int end_at) {
            const smla::kit::Interrupt interrupt(end_at);
            call.memory.reset();
            return call.run(context, scratch.get());
        };
        ASSERT_TRUE(succeeded(run(0)));
        const std::vector<uint8_t> wanted = call.memory.image();
        for (const int end_at : {1, 2}) {
            EXPECT_TRUE(refused(run(end_at), SMLA_CANCELLED, "interrupt")) << end_at;
            EXPECT_TRUE(call.memory.only_allowed_changed());
            EXPECT_TRUE(scratch.clean());
            EXPECT_TRUE(succeeded(run(0)));
            EXPECT_TRUE(call.memory.image() == wanted);
        }
    });
}

// What the refusal says is enough: "at least 12345".
size_t wanted_bytes() {
    const std::string wanted = last_error().wanted;
    const size_t digit = wanted.find_first_of("0123456789");
    return digit == std::string::npos ? 0 : size_t(std::stoull(wanted.substr(digit)));
}

CONTRACT_TEST(L7b_OneByteLessIsRefusedBeforeAnythingIsWritten) {
    int needing = 0;
    on_every_call(9, [&](Call& call, const Engine& engine) {
        const Context context(engine);
        const smla_status bare = call.run(context, Scratch(context, kHeader).get());
        if (bare == SMLA_OK) {  // no scratch: no workspace is needed at all
            EXPECT_TRUE(succeeded(call.run(context, {})));
            return;
        }
        ++needing;
        ASSERT_TRUE(refused(bare, SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes"));
        const size_t least = wanted_bytes();
        EXPECT_LE(least, call.workspace(context));
        const Scratch scratch(context, least - 1);
        EXPECT_TRUE(refused(call.run(context, scratch.get()), SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes"));
        EXPECT_EQ(std::string(last_error().got), std::to_string(least - 1));
        EXPECT_TRUE(scratch.clean());
        EXPECT_TRUE(call.memory.nothing_changed());
        const Scratch enough(context, least);
        EXPECT_TRUE(succeeded(call.run(context, enough.get())));
        EXPECT_TRUE(enough.clean());
    });
    EXPECT_GT(needing, 0);
}

// Within a budget, too, more tokens never want less.
void expect_monotone(const std::vector<std::unique_ptr<Call>>& calls, smla_context* context, size_t budget) {
    const Scratch largest(context, calls.back()->workspace(context, budget));
    size_t before = 0;
    for (const auto& call : calls) {
        const size_t size = call->workspace(context, budget);
        EXPECT_GE(size, before) << call->tokens << " tokens, budget " << budget;
        before = size;
        EXPECT_TRUE(succeeded(call->run(context, largest.get()))) << "sized for the largest step";
    }
    EXPECT_TRUE(largest.clean());
}

CONTRACT_TEST(L7c_WorkspaceSizesArePureFunctionsOfTheShapesAndMonotone) {
    for (const NamedMaker& maker : all_calls()) {
        std::vector<std::unique_ptr<Call>> calls, blind;
        for (const int64_t tokens : {0, 1, 2, 3, 5, 8, 13, 29}) {
            calls.push_back(make(maker, tokens));
            blind.push_back(make(maker, tokens));
            for (TensorField& field : blind.back()->tensors) field.tensor->data = nullptr;
            for (CacheField& field : blind.back()->caches) {
                field.cache->data = nullptr;
                if (!on_gpu()) field.cache->scale_device = reinterpret_cast<const float*>(uintptr_t(64));
            }
        }
        for (const Engine& engine : engines())
            for (const int32_t batch_invariant : {0, 1}) {
                SCOPED_TRACE(std::string(maker.name) + " on " + engine.name);
                const Context context(engine, {.threads = 3, .batch_invariant = batch_invariant});
                const Scratch largest(context, calls.back()->workspace(context));
                size_t before = 0;
                for (size_t i = 0; i < calls.size(); ++i) {
                    const size_t size = calls[i]->workspace(context);
                    EXPECT_GE(size, before) << calls[i]->tokens << " tokens";
                    EXPECT_EQ(blind[i]->workspace(context), size) << "data was looked at";
                    before = size;
                    EXPECT_TRUE(succeeded(calls[i]->run(context, largest.get())))
                        << "sized for the largest step";
                }
                EXPECT_TRUE(largest.clean());
                for (size_t i = 1; i + 1 < calls.size(); ++i)
                    expect_monotone(calls, context, calls[i]->workspace(context));
            }
    }
}

CONTRACT_TEST(L7d_BudgetsAreKeptAndLeaveNoTraceInTheBits) {
    on_every_call(23, [](Call& call, const Engine& engine) {
        const Options options{.threads = 3, .batch_invariant = 1};
        const Context context(engine, options);
        const size_t most = call.workspace(context), least = call.workspace(context, 1);
        EXPECT_LE(least, most);
        const std::vector<uint8_t> unbounded = result(call, engine, options);
        for (const size_t budget : {least, least + 1, (least + most) / 2, most, 2 * most}) {
            const size_t size = call.workspace(context, budget);
            EXPECT_LE(size, budget) << "least " << least << ", most " << most;
            EXPECT_GE(size, least);
            const bool same = result(call, engine, options, budget) == unbounded;
            // cuBLASLt chooses its product by the memory that it may take
            EXPECT_TRUE(same || (on_gpu() && call.through_blas)) << "budget " << budget;
        }
    });
}

CONTRACT_TEST(L8a_TheSameInputsGiveTheSameBits) {
    on_every_call(9, [](Call& call, const Engine& engine) {
        const Context context(engine, {.threads = 3}), other(engine, {.threads = 3});
        const std::vector<uint8_t> first = result(call, context);
        for (int again = 0; again < 3; ++again) EXPECT_TRUE(result(call, context) == first);
        EXPECT_TRUE(result(call, other) == first);
    });
}

CONTRACT_TEST(L8b_InBatchInvariantModeThreadsLeaveNoTrace) {
    CONTRACT_SKIP_ON_GPU("its calls have no threads");
    on_every_call(9, [](Call& call, const Engine& engine) {
        if (call.through_blas) return;
        const std::vector<uint8_t> one = result(call, engine, {.threads = 1, .batch_invariant = 1});
        for (const int threads : {2, 3, 5})
            EXPECT_TRUE(result(call, engine, {.threads = threads, .batch_invariant = 1}) == one)
                << threads << " threads";
    });
}

CONTRACT_TEST(L8c_ATokenAloneHasTheBitsItHasInABatch) {
    constexpr int64_t tokens = 9;
    for (const NamedMaker& maker : all_calls())
        for (const Engine& engine : engines()) {
            const Options options{.threads = 3, .batch_invariant = 1};
            const std::unique_ptr<Call> batch = make(maker, tokens);
            if (batch->through_blas || !batch->has_tokens) continue;
            const std::vector<uint8_t> together = result(*batch, engine, options);
            for (const int64_t step : {int64_t(1), int64_t(4)}) {
                const Context context(engine, options);
                const std::unique_ptr<Call> alone = make(maker, tokens);
                for (int64_t t = 0; t < tokens; t += step) {
                    std::vector<smla_tensor> whole;
                    for (const TensorField& field : alone->tensors) whole.push_back(*field.tensor);
                    alone->slice_tokens(t, std::min(t + step, tokens));
                    run_exactly(*alone, context);
                    for (size_t i = 0; i < whole.size(); ++i) *alone->tensors[i].tensor = whole[i];
                }
                EXPECT_TRUE(alone->memory.image() == together)
                    << maker.name << " on " << engine.name << ", by " << step;
            }
        }
}

// Stages whose results are integers, or numbers that are rounded once.
CONTRACT_TEST(L8e_IntegersAndRecordsAreTheSameOnEveryEngine) {
    constexpr const char* kStages[] = {"map",        "copy_pages",   "gather",       "gather_raw", "select",
                                       "select_ids", "write_kv_656", "write_kv_584", "save_state"};
    size_t compared = 0;
    for (const NamedMaker& maker : all_calls()) {
        if (std::count(std::begin(kStages), std::end(kStages), std::string_view(maker.name)) == 0) continue;
        const std::unique_ptr<Call> call = make(maker, 23);
        const std::vector<uint8_t> want = result(*call, reference_engine(), {});
        for (const Engine& engine : engines())
            EXPECT_TRUE(result(*call, engine, {}) == want) << maker.name << " on " << engine.name;
        ++compared;
    }
    EXPECT_EQ(compared, std::size(kStages));
}

CONTRACT_TEST(L10a_OnlyWhatTheCallerNamedIsWritten) {
    on_every_call(7, [](Call& call, const Engine& engine) {
        const Context context(engine, {.threads = 3});
        run_exactly(call, context);
        EXPECT_TRUE(call.memory.only_allowed_changed());
        const std::vector<uint8_t> image = call.memory.image();
        call.memory.reset();
        EXPECT_FALSE(image == call.memory.image()) << "nothing was written at all";
    });
}

}  // namespace
}  // namespace contract
