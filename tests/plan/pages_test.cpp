// Pages that a step needs and that its tables do not have are refused by name; what it does not need may hold
// anything.
#include "random_batch.h"

#include "core/status.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace smla::test {
namespace {

PlanMaxima maxima_of(int32_t groups, int32_t window = 0, int32_t ratio = 0) {
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = groups;
    maxima.max_tokens = 64;
    maxima.max_requests = 4;
    maxima.max_seq_len = 100;
    maxima.window = window;
    maxima.ratio = ratio;
    return maxima;
}

std::string refusal(const PlanMaxima& maxima, const Batch& batch) {
    Plan plan(maxima);
    try {
        plan.build(batch.view());
    } catch (const Error& error) {
        EXPECT_EQ(error.status, SMLA_INVALID_ARGUMENT);
        return error.what();
    }
    return "";
}

int32_t& page(Batch& batch, int group, int64_t request, int64_t column) {
    Group& g = batch.groups[size_t(group)];
    return g.table[size_t(request * g.columns + column)];
}

// Two running requests, the second one without its page: the commonest mistake of allocators.
TEST(PlanPages, ARunningRequestWithoutItsPage) {
    const PlanMaxima maxima = maxima_of(SMLA_GROUP_PRIMARY);
    Batch batch;
    add_request(batch, 1, 3);
    add_request(batch, 2, 6);
    set_table(batch, kPrimary, 2, 4);
    EXPECT_EQ(refusal(maxima, batch), "");
    page(batch, kPrimary, 0, 1) = -1;  // holds nothing yet
    EXPECT_EQ(refusal(maxima, batch), "");
    page(batch, kPrimary, 1, 0) = -1;
    EXPECT_EQ(refusal(maxima, batch),
              "batch.primary.block_table[1,0]: got -1, wanted a page for token 1 (request 1, position 4), "
              "which stores or reads position 0 there");
    page(batch, kPrimary, 1, 0) = 2;
    page(batch, kPrimary, 1, 1) = -9;
    EXPECT_EQ(refusal(maxima, batch),
              "batch.primary.block_table[1,1]: got -9, wanted a page for token 1 (request 1, position 4), "
              "which stores or reads position 4 there");
    page(batch, kPrimary, 1, 1) = std::numeric_limits<int32_t>::max() / 4 + 1;
    EXPECT_EQ(refusal(maxima, batch),
              "batch.primary.block_table[1,1]: got 536870912, wanted at most 536870911 (its rows must fit "
              "int32) for token 1 (request 1, position 4), which stores or reads position 4 there");
    page(batch, kPrimary, 1, 1) -= 1;
    EXPECT_EQ(refusal(maxima, batch), "");
}

// Tokens that the caller marks as padding need nothing, and the pages behind the last one that it does not.
TEST(PlanPages, PaddingNeedsNoPages) {
    const PlanMaxima maxima = maxima_of(SMLA_GROUP_PRIMARY | SMLA_GROUP_INDEX);
    Batch batch;
    add_request(batch, 5, 9);  // positions 4 to 8
    set_table(batch, kPrimary, 5, 2);
    set_table(batch, kIndex, 5, 2);
    batch.groups[kPrimary].slots = {-1, 5, -1, -1, -1};
    for (const int group : {kPrimary, kIndex}) page(batch, group, 0, 3) = page(batch, group, 0, 4) = -1;
    EXPECT_EQ(refusal(maxima, batch), "");
    page(batch, kIndex, 0, 2) = -1;
    EXPECT_EQ(refusal(maxima, batch),
              "batch.index.block_table[0,2]: got -1, wanted a page for token 1 (request 0, position 5), "
              "which stores or reads position 4 there");
    batch.groups[kPrimary].slots[1] = -1;
    EXPECT_EQ(refusal(maxima, batch), "");
    batch.starts[1] = 0;  // no query tokens
    batch.groups[kPrimary].slots = {};
    EXPECT_EQ(refusal(maxima, batch), "");
}

// Pages that the window has left may be freed, as those of a compressor's state that nothing writes.
TEST(PlanPages, FreedPagesOfAWindowAndOfAState) {
    const PlanMaxima maxima = maxima_of(SMLA_GROUP_WINDOW | SMLA_GROUP_STATE, 6);
    Batch batch;
    add_request(batch, 2, 22);  // positions 20 and 21: the window of the first begins at 15
    set_table(batch, kWindow, 6, 4);
    set_table(batch, kState, 6, 4);
    for (int64_t c = 0; c < 3; ++c) page(batch, kWindow, 0, c) = -1;
    for (int64_t c = 0; c < 5; ++c) page(batch, kState, 0, c) = -1;
    EXPECT_EQ(refusal(maxima, batch), "");
    page(batch, kState, 0, 5) = -1;
    EXPECT_EQ(refusal(maxima, batch),
              "batch.state.block_table[0,5]: got -1, wanted a page for token 0 (request 0, position 20), "
              "which stores or reads position 20 there");
    page(batch, kWindow, 0, 3) = -1;
    EXPECT_EQ(refusal(maxima, batch),
              "batch.window.block_table[0,3]: got -1, wanted a page for token 0 (request 0, position 20), "
              "which stores or reads position 15 there");
}

// Entries count from the token that closes them.
TEST(PlanPages, EntriesThatNobodySeesYet) {
    const PlanMaxima maxima = maxima_of(SMLA_GROUP_WINDOW | SMLA_GROUP_COMPRESSED, 4, 4);
    Batch batch;
    add_request(batch, 5, 10);  // positions 5 to 9: entries 0 and 1, which position 7 closes
    set_table(batch, kWindow, 3, 4);
    set_table(batch, kCompressed, 3, 1);
    page(batch, kCompressed, 0, 2) = -1;
    EXPECT_EQ(refusal(maxima, batch), "");
    page(batch, kCompressed, 0, 1) = -1;
    EXPECT_EQ(refusal(maxima, batch),
              "batch.compressed.block_table[0,1]: got -1, wanted a page for token 2 (request 0, position 7), "
              "which stores or reads entry 1 there");
}

// Any page that a random step needs, in turn: it is refused, and the plan stays as it was. PlanRandom holds
// that nothing else is.
TEST(PlanPages, EveryNeededPageIsLookedAt) {
    int64_t pages = 0;
    for (uint32_t seed = 0; seed < 60; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        const PlanMaxima maxima = random_maxima(dice);
        Batch batch = random_batch(dice, maxima);
        Plan plan(maxima);
        plan.build(batch.view());
        std::vector<std::vector<int64_t>> before;
        for (const char* name : plan.names()) before.push_back(all_values_of(plan, name));
        for (const PageOf& each : needed_pages(maxima, batch)) {
            int32_t& entry = page(batch, each.group, each.request, each.column);
            const int32_t good = std::exchange(entry, dice.one_in(2)   ? dice.in(-3, -1)
                                                      : dice.one_in(2) ? std::numeric_limits<int32_t>::min()
                                                                       : std::numeric_limits<int32_t>::max());
            const bool fits = entry > 0 && batch.groups[size_t(each.group)].page_tokens == 1 &&
                              batch.groups[size_t(each.group)].page_rows <= 1;  // all of int32 are rows
            std::string field;
            try {
                plan.build(batch.view());
            } catch (const Error& error) {
                field = error.field;
            }
            if (!fits) {
                ASSERT_EQ(field, text("batch.", kGroupNames[each.group], ".block_table[", each.request, ",",
                                      each.column, "]"));
            }
            entry = good;
            pages += 1;
            if (fits) plan.build(batch.view());
        }
        size_t i = 0;
        for (const char* name : plan.names()) EXPECT_EQ(all_values_of(plan, name), before[i++]) << name;
    }
    EXPECT_GT(pages, 1000);
}

}  // namespace
}  // namespace smla::test
