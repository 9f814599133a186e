// Random steps, one after the other through one plan, against the slow model: every field of every step, and
// the memory behind the step's tokens.
#include "batch.h"

#include <gtest/gtest.h>

#include <random>

namespace smla::test {
namespace {

class Dice {
public:
    explicit Dice(uint32_t seed) : engine_(seed) {}
    int32_t in(int32_t low, int32_t high) {
        return std::uniform_int_distribution<int32_t>(low, high)(engine_);
    }
    bool one_in(int32_t n) { return in(1, n) == 1; }

private:
    std::mt19937 engine_;
};

PlanMaxima random_maxima(Dice& dice) {
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = dice.in(1, kPlanGroups);
    maxima.max_tokens = dice.in(1, 40);
    maxima.max_requests = dice.in(1, 9);
    maxima.max_seq_len = dice.in(1, 700);
    maxima.speculative_tokens = dice.in(0, 3);
    if (maxima.groups & SMLA_PLAN_WINDOW) maxima.window = dice.in(1, 140);
    if (maxima.groups & SMLA_PLAN_COMPRESSED) {
        maxima.ratio = dice.one_in(3) ? 4 : dice.in(1, 130);
        maxima.list_entries = dice.in(0, 1);
    }
    maxima.heads = dice.in(0, 20);
    maxima.workers = dice.in(0, 8);
    maxima.topk = dice.in(0, 100);
    return maxima;
}

void random_requests(Dice& dice, const PlanMaxima& maxima, Batch& batch) {
    const int32_t requests = dice.in(0, maxima.max_requests);
    int32_t left = maxima.max_tokens;
    for (int32_t r = 0; r < requests; ++r) {
        const int32_t most = std::min(left, maxima.max_seq_len);
        const int32_t query =
            dice.in(0, dice.one_in(3) ? most : std::min(most, 1 + maxima.speculative_tokens));
        add_request(batch, query, dice.one_in(4) ? query : dice.in(query, maxima.max_seq_len));
        left -= query;
    }
    if (dice.one_in(2)) batch.tokens = dice.in(std::max(1, batch.starts.back()), maxima.max_tokens);
}

void random_group(Dice& dice, const PlanMaxima& maxima, int g, Batch& batch) {
    const bool entries = g == kCompressed || (g == kIndex && maxima.ratio > 0);
    Group& group = batch.groups[size_t(g)];
    group.page_tokens = dice.one_in(3) ? 2 : dice.in(1, 70);
    if (dice.one_in(3)) group.page_rows = group.page_tokens + dice.in(0, 9);
    const int32_t rows = entries ? maxima.max_seq_len / maxima.ratio : maxima.max_seq_len;
    group.columns = (rows + group.page_tokens - 1) / group.page_tokens + dice.in(0, 2);
    const int32_t page_rows = group.page_rows ? group.page_rows : group.page_tokens;
    for (int64_t i = 0; i < batch.requests() * group.columns; ++i) {
        int32_t block = dice.in(0, 5000);
        if (dice.one_in(20)) block = dice.in(-3, -1);
        if (dice.one_in(50))
            block = std::numeric_limits<int32_t>::max() /
                    (dice.one_in(2) ? page_rows : 1);  // past int32, in part or all
        group.table.push_back(block);
    }
    if (entries || dice.one_in(2) || batch.query_tokens() == 0) return;
    for (int64_t t = 0; t < batch.query_tokens(); ++t)
        group.slots.push_back(dice.one_in(9) ? dice.in(-5, -1) : dice.in(0, 1 << 30));
    if (dice.one_in(2)) group.slots32.assign(group.slots.begin(), group.slots.end());
    if (dice.one_in(2)) group.slots.push_back(77);  // padding: not looked at
    const bool needs_table = g == kWindow;
    if (!needs_table && dice.one_in(3)) {
        group.table.clear();
        group.columns = -1;
    }
}

Batch random_batch(Dice& dice, const PlanMaxima& maxima) {
    Batch batch;
    random_requests(dice, maxima, batch);
    for (int g = 0; g < 6; ++g)
        if (maxima.groups & (1 << g)) random_group(dice, maxima, g, batch);
    if (dice.one_in(3))
        for (int64_t t = 0; t < batch.query_tokens(); ++t) batch.rope.push_back(dice.in(0, 1 << 20));
    return batch;
}

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
