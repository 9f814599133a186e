#include "serving.h"

#include <algorithm>
#include <numeric>

namespace smla::test {

namespace {

void random_pages(Random& random, Batch& batch, int group, int32_t page_tokens, int32_t most_rows,
                  int32_t more = 2) {
    const int64_t columns = (most_rows + page_tokens - 1) / page_tokens + random.in(0, more);
    std::vector<int32_t> pages(size_t(batch.requests() * columns));
    std::iota(pages.begin(), pages.end(), 0);
    for (size_t i = pages.size(); i > 1; --i)
        std::swap(pages[i - 1], pages[size_t(random.in(0, int32_t(i) - 1))]);
    set_table(batch, group, columns, page_tokens);
    batch.groups[size_t(group)].table = pages;
}

// Tokens per entry of the layer, and of a page of the compressed groups.
int32_t entry_ratio(const BackendArgs& args) {
    return args.family == SMLA_FAMILY_HYBRID && args.ratio == 1 ? 0 : args.ratio;
}
int32_t entry_page_tokens(const BackendArgs& args) {
    return args.page_tokens ? args.page_tokens : args.family == SMLA_FAMILY_HYBRID ? 256 : 128;
}
int32_t window_page_tokens(const BackendArgs& args) {
    return args.window_page_tokens ? args.window_page_tokens : args.family == SMLA_FAMILY_HYBRID ? 64 : 32;
}

// Slots given: some tokens have none.
void give_slots(Random& random, Batch& batch, Group& group) {
    for (int64_t r = 0; r < batch.requests(); ++r)
        for (int32_t t = batch.starts[size_t(r)]; t < batch.starts[size_t(r) + 1]; ++t) {
            const int64_t position = batch.lengths[size_t(r)] - (batch.starts[size_t(r) + 1] - t);
            const int32_t page = group.table[size_t(r * group.columns + position / group.page_tokens)];
            group.slots.push_back(random.in(0, 7) ? page * group.page_tokens + position % group.page_tokens
                                                  : -1);
        }
}

}  // namespace

Batch random_step(Random& random, const BackendArgs& args) {
    Batch batch;
    const int32_t most = 1 + args.speculative_tokens;
    const auto add = [&](int32_t query) {
        if (batch.starts.back() + query > args.max_tokens) return;
        add_request(batch, query, random.in(query, random.in(0, 2) ? 60 : args.max_seq_len));
    };
    const int32_t decodes = random.in(0, args.max_requests),
                  prefills = random.in(0, args.max_requests - decodes);
    for (int32_t i = 0; i < decodes; ++i) add(random.in(1, most));
    for (int32_t i = 0; i < prefills; ++i) add(random.in(most + 1, most + 8));
    if (random.in(0, 2) == 0) batch.tokens = std::max(1, random.in(batch.starts.back(), args.max_tokens));
    const bool hybrid = args.family != SMLA_FAMILY_DSA;
    const int first = hybrid ? kWindow : kPrimary;
    random_pages(random, batch, first, hybrid ? window_page_tokens(args) : random.in(1, 70),
                 args.max_seq_len);
    if (hybrid && entry_ratio(args))
        random_pages(random, batch, kCompressed, entry_page_tokens(args) / args.ratio,
                     args.max_seq_len / args.ratio);
    if (!hybrid && (args.plan_groups & SMLA_GROUP_INDEX))
        random_pages(random, batch, kIndex, 64, args.max_seq_len);
    if (batch.query_tokens() > 0 && random.in(0, 1)) give_slots(random, batch, batch.groups[size_t(first)]);
    return batch;
}

Batch decode_step(Random& random, const BackendArgs& args, int32_t requests) {
    Batch batch;
    for (int32_t r = 0; r < requests; ++r) add_request(batch, 1, random.in(1, args.max_seq_len));
    batch.tokens = args.max_tokens;
    const bool hybrid = args.family != SMLA_FAMILY_DSA;
    const int first = hybrid ? kWindow : kPrimary;
    const int32_t page = hybrid ? window_page_tokens(args) : args.page_tokens ? args.page_tokens : 64;
    random_pages(random, batch, first, page, args.max_seq_len, 0);
    if (hybrid && entry_ratio(args))
        random_pages(random, batch, kCompressed, entry_page_tokens(args) / args.ratio,
                     args.max_seq_len / args.ratio, 0);
    give_slots(random, batch, batch.groups[size_t(first)]);
    return batch;
}

}  // namespace smla::test
