// Random steps, one after the other through one plan, against the slow model: every field of every step, and
// the memory behind the step's tokens.
#include "random_batch.h"

#include <gtest/gtest.h>

namespace smla::test {
namespace {

void expect_step(const Plan& plan, const PlanMaxima& maxima, const Batch& batch) {
    const auto expected = expected_fields(maxima, batch);
    const int64_t tokens = batch.tokens ? batch.tokens : batch.query_tokens();
    for (const FieldSpec& spec : kPlanFieldSpecs) {
        const std::string name = spec.name;
        const Tensor* field = plan.find(name);
        if (name == "schedule") continue;
        const auto want = expected.find(name);
        if (per_token(spec.shape) && tokens == 0) {
            ASSERT_TRUE(!field || field->shape[0] == 0) << name;
        } else {
            ASSERT_EQ(field != nullptr, want != expected.end()) << name;
            ASSERT_TRUE(!field || values_of(*field) == want->second.values) << name;
        }
        if (!field || !per_token(spec.shape)) continue;
        const std::vector<int64_t> all = all_values_of(plan, spec.name);
        const int64_t each = int64_t(all.size()) / maxima.max_tokens;
        for (int64_t i = tokens * each; i < int64_t(all.size()); ++i)
            ASSERT_EQ(all[size_t(i)], spec.padding) << name << " behind the step, element " << i;
    }
}

TEST(PlanRandom, EveryFieldOfEveryStep) {
    for (uint32_t seed = 0; seed < 120; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        const PlanMaxima maxima = random_maxima(dice);
        Plan plan(maxima);
        for (int step = 0; step < 8; ++step) {
            SCOPED_TRACE(step);
            const Batch batch = random_batch(dice, maxima);
            plan.build(batch.view());
            expect_step(plan, maxima, batch);
            if (HasFatalFailure()) return;
        }
    }
}

// The same step gives the same memory whatever the plan built before.
TEST(PlanRandom, HistoryLeavesNoTrace) {
    for (uint32_t seed = 1000; seed < 1040; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        const PlanMaxima maxima = random_maxima(dice);
        Plan used(maxima), fresh(maxima);
        for (int step = 0; step < 5; ++step) used.build(random_batch(dice, maxima).view());
        const Batch batch = random_batch(dice, maxima);
        used.build(batch.view());
        fresh.build(batch.view());
        for (const char* name : used.names())
            ASSERT_EQ(all_values_of(used, name), all_values_of(fresh, name)) << name;
    }
}

}  // namespace
}  // namespace smla::test
