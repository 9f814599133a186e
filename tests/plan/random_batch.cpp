#include "random_batch.h"

#include <algorithm>
#include <limits>

namespace smla::test {

PlanMaxima random_maxima(Dice& dice) {
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = dice.in(1, kPlanGroups);
    maxima.max_tokens = dice.in(1, 40);
    maxima.max_requests = dice.in(1, 9);
    maxima.max_seq_len = dice.in(1, 700);
    maxima.speculative_tokens = dice.in(0, 3);
    if (maxima.groups & SMLA_GROUP_WINDOW) maxima.window = dice.in(1, 140);
    if (maxima.groups & SMLA_GROUP_COMPRESSED) {
        maxima.ratio = dice.one_in(3) ? 4 : dice.in(1, 130);
        maxima.list_entries = dice.in(0, 1);
    } else if ((maxima.groups & (SMLA_GROUP_PRIMARY | SMLA_GROUP_INDEX)) && dice.one_in(2))
        maxima.ratio = dice.in(1, 20);
    maxima.heads = dice.in(0, 20);
    maxima.workers = dice.in(0, 8);
    maxima.topk = dice.in(0, 100);
    return maxima;
}

namespace {

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
    const int32_t most = (std::numeric_limits<int32_t>::max() - group.page_tokens + 1) / page_rows;
    for (int64_t i = 0; i < batch.requests() * group.columns; ++i)
        group.table.push_back(dice.one_in(50) ? most : dice.in(0, 5000));
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

// Entries of tables that no token needs hold anything.
void spoil_unneeded_pages(Dice& dice, const PlanMaxima& maxima, Batch& batch) {
    const std::set<PageOf> needed = needed_pages(maxima, batch);
    for (int g = 0; g < 6; ++g) {
        Group& group = batch.groups[size_t(g)];
        for (int64_t i = 0; i < int64_t(group.table.size()); ++i)
            if (!needed.count({g, i / group.columns, i % group.columns}) && !dice.one_in(4))
                group.table[size_t(i)] = dice.one_in(2) ? dice.in(-3, -1)
                                         : dice.one_in(2)
                                             ? std::numeric_limits<int32_t>::min()
                                             : std::numeric_limits<int32_t>::max() / dice.in(1, 70);
    }
}

int32_t garbage(Dice& dice, int32_t usual) {
    if (!dice.one_in(4)) return dice.in(-2, usual);
    return dice.in(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
}

void hostile_group(Dice& dice, const PlanMaxima& maxima, int g, Batch& batch) {
    Group& group = batch.groups[size_t(g)];
    group.page_tokens = dice.in(1, 70);
    if (dice.one_in(3)) group.page_rows = group.page_tokens + dice.in(0, 9);
    group.columns = dice.in(0, maxima.max_seq_len / group.page_tokens + 1);
    for (int64_t i = 0; i < batch.requests() * group.columns; ++i) group.table.push_back(garbage(dice, 5000));
    const bool entries = g == kCompressed || (g == kIndex && maxima.ratio > 0);
    if (entries || dice.one_in(3)) return;
    const int32_t given = dice.in(1, batch.tokens);
    for (int32_t t = 0; t < given; ++t) group.slots.push_back(garbage(dice, 1 << 30));
}

}  // namespace

Batch random_batch(Dice& dice, const PlanMaxima& maxima) {
    Batch batch;
    random_requests(dice, maxima, batch);
    for (int g = 0; g < 6; ++g)
        if (maxima.groups & (1 << g)) random_group(dice, maxima, g, batch);
    spoil_unneeded_pages(dice, maxima, batch);
    if (dice.one_in(3))
        for (int64_t t = 0; t < batch.query_tokens(); ++t) batch.rope.push_back(dice.in(0, 1 << 20));
    return batch;
}

Batch hostile_batch(Dice& dice, const PlanMaxima& maxima) {
    Batch batch;
    batch.tokens = dice.in(1, maxima.max_tokens);
    batch.starts[0] = garbage(dice, 3);
    const int32_t requests = dice.in(0, maxima.max_requests);
    for (int32_t r = 0; r < requests; ++r) {
        batch.starts.push_back(garbage(dice, batch.tokens + 2));
        batch.lengths.push_back(garbage(dice, maxima.max_seq_len + 2));
    }
    if (dice.one_in(2)) std::sort(batch.starts.begin(), batch.starts.end());
    for (int g = 0; g < 6; ++g)
        if (maxima.groups & (1 << g)) hostile_group(dice, maxima, g, batch);
    if (dice.one_in(3))
        for (int32_t t = dice.in(1, batch.tokens); t > 0; --t) batch.rope.push_back(garbage(dice, 1 << 20));
    return batch;
}

}  // namespace smla::test
