// Steps are planned once: a step of a description that its context knows runs in one pass and gives the bits
// of a step that was planned anew; what differs is planned again.
#include "kit/context_args.h"
#include "kit/refused.h"
#include "norm_chain.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

namespace smla::test {
namespace {

smla_context_args on_cpu() { return kit::context_args(SMLA_ENGINE_CPU, 1); }

struct Buffers {
    alignas(256) float x[64], weight[kNormWidth], out[64];

    explicit Buffers(uint32_t seed) {
        std::mt19937 random(seed);
        std::uniform_real_distribution<float> values(-2, 2);
        for (float& value : x) value = values(random);
        for (float& value : weight) value = values(random);
        std::memset(out, 0xFF, sizeof out);
    }
    NormChain step(int64_t tokens) {
        return {.x = make_tensor(x, SMLA_F32, {tokens, 1, kNormWidth}),
                .weight = make_tensor(weight, SMLA_F32, {kNormWidth}),
                .out = make_tensor(out, SMLA_F32, {tokens, 1, kNormWidth})};
    }
};

class StepPlans : public testing::Test {
protected:
    // How often the step is told.
    int64_t run(const NormChain& step, uint64_t whose = 1, const Tap* tap = nullptr, size_t budget = 0) {
        return run_chain(context.env({}), step, workspace.at_least(1 << 16), whose, tap, budget);
    }

    Context context{on_cpu()};
    OwnedWorkspace workspace{context};
};

TEST_F(StepPlans, ASecondStepOfADescriptionIsToldOnce) {
    Buffers a(1), b(2), planned(2);
    EXPECT_EQ(run(a.step(3)), 2);
    EXPECT_EQ(run(a.step(3)), 1);
    EXPECT_EQ(run(b.step(3)), 1);  // other memory, aligned alike
    EXPECT_EQ(run(planned.step(3), 2), 2);
    EXPECT_EQ(std::memcmp(b.out, planned.out, sizeof b.out), 0);
    EXPECT_NE(std::memcmp(a.out, b.out, sizeof a.out), 0);
}

TEST_F(StepPlans, WhatDiffersIsPlannedAgain) {
    Buffers a(1);
    EXPECT_EQ(run(a.step(3)), 2);
    EXPECT_EQ(run(a.step(4)), 2);                    // a shape
    EXPECT_EQ(run(a.step(3), 2), 2);                 // whose step it is
    EXPECT_EQ(run(a.step(3), 1, nullptr, 4096), 2);  // the budget
    NormChain moved = a.step(3);
    moved.x.data = a.x + 1;  // the alignment
    EXPECT_EQ(run(moved), 2);
    EXPECT_EQ(run(a.step(3)), 1);
    const Tap tap;
    EXPECT_EQ(run(a.step(3), 1, &tap), 2);  // an observer may ask for more
}

TEST_F(StepPlans, ARefusedStepIsNotKeptAndWritesNothing) {
    Buffers a(1);
    NormChain wrong = a.step(3);
    wrong.out.shape[2] = 7;
    for (int i = 0; i < 2; ++i) EXPECT_THROW(run(wrong), Error);
    uint32_t first;
    std::memcpy(&first, a.out, sizeof first);
    EXPECT_EQ(first, 0xFFFFFFFFu);
    // memory that is missing is part of the description: no kept plan lets it pass
    EXPECT_EQ(run(a.step(3)), 2);
    NormChain absent = a.step(3);
    absent.x.data = nullptr;
    EXPECT_THROW(run(absent), Error);
}

TEST_F(StepPlans, ReplayedCallsLookForSharedMemory) {
    Buffers a(1);
    EXPECT_EQ(run(a.step(3)), 2);
    NormChain shared = a.step(3);
    shared.weight.data = shared.out.data;
    EXPECT_THROW(run(shared), Error);
}

TEST_F(StepPlans, AnotherOrderOfStagesIsAnError) {
    Buffers a(1);
    const Env env = context.env({});
    const Workspace memory = workspace.at_least(1 << 16);
    PlanKey key(PlanUse::step, 7, 0, env);
    run_step(env, &key, 0, memory, nullptr, nullptr, [&](Runner& runner) { a.step(3)(runner); });
    const auto refused = [&](const std::function<void(Runner&)>& step) {
        return kit::refused_field([&] { run_step(env, &key, 0, memory, nullptr, nullptr, step); },
                                  SMLA_INTERNAL);
    };
    EXPECT_EQ(refused([&](Runner& runner) {
                  const NormChain step = a.step(3);
                  constexpr int64_t n = kNormWidth;
                  runner.run<Stage::project>(
                      {.x = step.x, .w = make_tensor(a.x, SMLA_F32, {1, n, n}), .out = step.out});
              }),
              "step");
    NormChain longer = a.step(3);
    EXPECT_EQ(refused([&](Runner& runner) {
                  longer(runner);
                  longer(runner);
              }),
              "activations");  // more than the planned step has
}

TEST_F(StepPlans, PartsOfAStepAreInItsKey) {
    const Env env = context.env({});
    PlanKey one(PlanUse::step, 1, 0, env), other(PlanUse::step, 1, 0, env), longer(PlanUse::step, 1, 0, env);
    EXPECT_TRUE(one.add_numbers(std::array{0, 3, 5}));
    EXPECT_TRUE(other.add_numbers(std::array{0, 4, 5}));
    EXPECT_TRUE(longer.add_numbers(std::array{0, 3, 5, 5}));
    const auto keep = std::make_shared<const int>(1);
    PlanCache cache;
    cache.keep(one, keep);
    EXPECT_EQ(cache.find(one), keep);
    EXPECT_EQ(cache.find(other), nullptr);
    EXPECT_EQ(cache.find(longer), nullptr);
    EXPECT_FALSE(one.add_numbers(std::vector<int32_t>(1 << 12)));
}

}  // namespace
}  // namespace smla::test
