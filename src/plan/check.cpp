#include "core/workspace.h"
#include "plan/pages.h"
#include "plan/plan.h"

#include <algorithm>
#include <limits>

namespace smla {

namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

// Members of a cache group in a batch, and the names of its fields in errors.
struct GroupSpec {
    int32_t bit;
    PlanGroup PlanBatch::*member;
    const char *name, *table, *slots, *page_tokens, *page_rows;
};
#define SMLA_PLAN_GROUP(bit, name)                                                                     \
    {                                                                                                  \
        bit, &PlanBatch::name, "batch." #name, "batch." #name ".block_table", "batch." #name ".slots", \
            "batch." #name ".page_tokens", "batch." #name ".page_rows"                                 \
    }
constexpr GroupSpec kGroups[] = {
    SMLA_PLAN_GROUP(SMLA_GROUP_PRIMARY, primary),       SMLA_PLAN_GROUP(SMLA_GROUP_WINDOW, window),
    SMLA_PLAN_GROUP(SMLA_GROUP_COMPRESSED, compressed), SMLA_PLAN_GROUP(SMLA_GROUP_INDEX, index),
    SMLA_PLAN_GROUP(SMLA_GROUP_STATE, state),           SMLA_PLAN_GROUP(SMLA_GROUP_INDEX_STATE, index_state),
};
#undef SMLA_PLAN_GROUP

bool holds_entries(const PlanMaxima& maxima, const GroupSpec& group) {
    return group.bit == SMLA_GROUP_COMPRESSED ||
           (group.bit == SMLA_GROUP_INDEX && index_holds_entries(maxima));
}

void check_flag(const char* field, int32_t value) {
    SMLA_CHECK(value == 0 || value == 1, field, value, "0 or 1");
}

void check_amount(const char* field, int32_t value, int32_t least) {
    SMLA_CHECK(value >= least, field, value, text(least, " or more"));
}

void check_lengths(const PlanMaxima& maxima, const PlanBatch& batch, BatchSize& size) {
    const auto* starts = static_cast<const int32_t*>(batch.query_start_loc.data);
    const auto* lengths = static_cast<const int32_t*>(batch.seq_lens.data);
    SMLA_CHECK(starts[0] == 0, "batch.query_start_loc[0]", starts[0], "0");
    for (int64_t r = 0; r < size.requests; ++r)  // first, because checks of lengths use starts
        SMLA_CHECK(starts[r + 1] >= starts[r], text("batch.query_start_loc[", r + 1, "]"), starts[r + 1],
                   text("at least ", starts[r], " (the previous value)"));
    int64_t keys = 0;
    for (int64_t r = 0; r < size.requests; ++r) {
        const int64_t begin = starts[r], end = starts[r + 1], length = lengths[r];
        SMLA_CHECK(length >= 0, text("batch.seq_lens[", r, "]"), length, "0 or more");
        SMLA_CHECK(length >= end - begin, text("batch.seq_lens[", r, "]"), length,
                   text("at least ", end - begin, " (the query tokens of the request)"));
        SMLA_CHECK(length <= maxima.max_seq_len, text("batch.seq_lens[", r, "]"), length,
                   text("at most max_seq_len (", maxima.max_seq_len, ")"));
        keys += length;
        if (length > size.longest) size.longest = length;
    }
    // gathered keys have i32 numbers
    if (maxima.groups & SMLA_GROUP_INDEX)
        SMLA_CHECK(keys / (index_holds_entries(maxima) ? maxima.ratio : 1) <= kMaxInt, "batch.seq_lens",
                   text(keys, " tokens in total"), "index keys whose number fits in int32");
}

// The caller's slots. A token with a negative slot is padding.
struct GivenSlots {
    TokenNumbers groups[kTokenGroups];
    int count = 0;

    explicit GivenSlots(const PlanBatch& batch) {
        for (const GroupSpec& spec : kGroups)
            if (const Tensor& slots = (batch.*spec.member).slots; present(slots))
                groups[count++] = numbers_of(slots);
    }
    bool padding(int64_t t) const {
        for (int g = 0; g < count; ++g)
            if (groups[g].at(t) < 0) return true;
        return false;
    }
};

// Tokens of one request in this step, except leading and trailing padding.
struct QueryTokens {
    int64_t request, first, last;  // first and last token in the step; last < first if all are padding
    int64_t first_position, last_position;
};

QueryTokens query_tokens(const PlanBatch& batch, const GivenSlots& slots, int64_t request) {
    const auto* starts = static_cast<const int32_t*>(batch.query_start_loc.data);
    int64_t first = starts[request], last = int64_t(starts[request + 1]) - 1;
    const int64_t before = static_cast<const int32_t*>(batch.seq_lens.data)[request] - (last + 1);
    while (first <= last && slots.padding(first)) ++first;
    while (last > first && slots.padding(last)) --last;
    return {request, first, last, before + first, before + last};
}

// Rows of a group (tokens or entries) whose pages these tokens write or may attend to. Pages of a
// compressor's state may be freed while a window still covers them, so only pages to be written are required.
struct Rows {
    int64_t begin, end;
};
Rows needed_rows(const PlanMaxima& maxima, const GroupSpec& spec, bool slots_given,
                 const QueryTokens& query) {
    const int64_t end = query.last_position + 1;
    if (holds_entries(maxima, spec)) return {0, end / maxima.ratio};
    switch (spec.bit) {
        case SMLA_GROUP_WINDOW: return {std::max<int64_t>(0, query.first_position + 1 - maxima.window), end};
        case SMLA_GROUP_STATE:
        case SMLA_GROUP_INDEX_STATE: return {slots_given ? end : query.first_position, end};
        default: return {0, end};
    }
}

[[noreturn]] void refuse_page(const PlanMaxima& maxima, const GroupSpec& spec, const PlanGroup& group,
                              const GivenSlots& slots, const QueryTokens& query, int64_t row, int64_t column,
                              int64_t most) {
    const bool entry = holds_entries(maxima, spec);
    // position of the first token that needs the row
    const int64_t position = std::max(query.first_position, entry ? (row + 1) * maxima.ratio - 1 : row);
    int64_t t = query.first + position - query.first_position;
    while (slots.padding(t)) ++t;
    const int64_t page = load_int(group.block_table, query.request, column);
    fail(SMLA_INVALID_ARGUMENT, text(spec.table, "[", query.request, ",", column, "]"), text(page),
         text(page < 0 ? "a page" : text("at most ", most, " (its rows must fit int32)"), " for token ", t,
              " (request ", query.request, ", position ", t - query.first + query.first_position,
              "), which stores or reads ", entry ? "entry " : "position ", row, " there"));
}

// Throws if a page that a token writes or may attend to is not in its table.
void check_pages(const PlanMaxima& maxima, const PlanBatch& batch, const BatchSize& size) {
    const GivenSlots slots(batch);
    for (int64_t r = 0; r < size.requests; ++r) {
        const QueryTokens query = query_tokens(batch, slots, r);
        if (query.last < query.first) continue;
        for (const GroupSpec& spec : kGroups) {
            const PlanGroup& group = batch.*spec.member;
            if (!present(group.block_table)) continue;
            const Rows rows = needed_rows(maxima, spec, present(group.slots), query);
            if (rows.begin == rows.end) continue;
            const int64_t page_rows = group.page_rows ? group.page_rows : group.page_tokens;
            const int64_t most = (kMaxInt - (group.page_tokens - 1)) / page_rows;
            const int64_t begin = rows.begin / group.page_tokens, end = ceil_div(rows.end, group.page_tokens);
            const auto* const table = reinterpret_cast<const int32_t*>(address(group.block_table, r));
            const int64_t column = find_no_page(table, begin, end, int32_t(most));
            if (column < end)
                refuse_page(maxima, spec, group, slots, query,
                            std::max(rows.begin, column * group.page_tokens), column, most);
        }
    }
}

void check_table(const PlanMaxima& maxima, const PlanBatch& batch, const GroupSpec& spec,
                 const CheckContext& context, const BatchSize& size) {
    const PlanGroup& group = batch.*spec.member;
    check_tensor(spec.table, group.block_table, kInt32, {size.requests, kAny}, context);
    check_rows(spec.table, group.block_table);
    const int64_t rows = size.longest / (holds_entries(maxima, spec) ? maxima.ratio : 1);
    const int64_t columns = ceil_div(rows, group.page_tokens);
    SMLA_CHECK(group.block_table.shape[1] >= columns, text(spec.table, ".shape[1]"),
               group.block_table.shape[1],
               text("at least ", columns, ", because the longest request has ", size.longest, " tokens"));
}

void check_group(const PlanMaxima& maxima, const PlanBatch& batch, const GroupSpec& spec,
                 const CheckContext& context, const BatchSize& size) {
    const PlanGroup& group = batch.*spec.member;
    if (!(maxima.groups & spec.bit)) {
        const bool absent =
            !present(group.block_table) && !present(group.slots) && !group.page_tokens && !group.page_rows;
        SMLA_CHECK(absent, spec.name, "present", "zeros, because the plan has no such group");
        return;
    }
    SMLA_CHECK(group.page_tokens >= 1, spec.page_tokens, group.page_tokens, "1 or more");
    SMLA_CHECK(group.page_rows == 0 || group.page_rows >= group.page_tokens, spec.page_rows, group.page_rows,
               text("0, or at least page_tokens (", group.page_tokens, ")"));
    const bool entries = holds_entries(maxima, spec), slots = present(group.slots);
    SMLA_CHECK(!entries || !slots, spec.slots, describe(group.slots),
               "absent (the block table gives the slots of entries)");
    if (slots) {
        check_tensor(spec.slots, group.slots, kInts, {kAny}, context);
        SMLA_CHECK(group.slots.shape[0] >= size.query_tokens, text(spec.slots, ".shape[0]"),
                   group.slots.shape[0], text("at least ", size.query_tokens, " (the query tokens)"));
    }
    if (!slots || spec.bit == SMLA_GROUP_WINDOW || present(group.block_table))
        check_table(maxima, batch, spec, context, size);
}

}  // namespace

PlanPages pages_of(const PlanBatch& batch, int32_t group) {
    for (const GroupSpec& spec : kGroups)
        if (spec.bit == group) {
            const PlanGroup& given = batch.*spec.member;
            return {given.page_tokens, given.page_rows ? given.page_rows : given.page_tokens};
        }
    return {};
}

void check_plan(const PlanMaxima& maxima) {
    SMLA_CHECK(maxima.groups > 0 && maxima.groups <= kPlanGroups, "args.groups", maxima.groups,
               text("SMLA_GROUP_* bits, 1 to ", kPlanGroups));
    check_amount("args.max_tokens", maxima.max_tokens, 1);
    check_amount("args.max_requests", maxima.max_requests, 1);
    check_amount("args.max_seq_len", maxima.max_seq_len, 1);
    check_amount("args.speculative_tokens", maxima.speculative_tokens, 0);
    check_flag("args.uniform_decodes", maxima.uniform_decodes);
    check_flag("args.list_entries", maxima.list_entries);
    check_flag("args.batch_invariant", maxima.batch_invariant);
    check_amount("args.topk", maxima.topk, 0);
    check_amount("args.heads", maxima.heads, 0);
    check_amount("args.workers", maxima.workers, 0);
    const bool window = maxima.groups & SMLA_GROUP_WINDOW, entries = maxima.groups & SMLA_GROUP_COMPRESSED;
    SMLA_CHECK(window ? maxima.window >= 1 : maxima.window == 0, "args.window", maxima.window,
               window ? "1 or more tokens" : "0, because args.groups has no window group");
    const bool pools = maxima.groups & (SMLA_GROUP_PRIMARY | SMLA_GROUP_INDEX);  // of GLM-5.3
    SMLA_CHECK(maxima.ratio >= int32_t(entries) && (entries || pools || maxima.ratio == 0), "args.ratio",
               maxima.ratio,
               entries ? "1 or more tokens per entry"
               : pools ? "0, or 1 or more tokens per pool"
                       : "0, because args.groups has no compressed, primary or index group");
    SMLA_CHECK(entries || !maxima.list_entries, "args.list_entries", maxima.list_entries,
               "0, because args.groups has no compressed group");
    const bool given = maxima.allocator.alloc || maxima.allocator.free;
    SMLA_CHECK(!given || (maxima.allocator.alloc && maxima.allocator.free), "args.allocator",
               "only one of alloc and free", "both or neither");
    constexpr int64_t kMaxElements = int64_t(1) << 44;
    SMLA_CHECK(maxima.window <= kMaxElements / maxima.max_tokens, "args.window", maxima.window,
               "a product of max_tokens and window below 2^44");
    SMLA_CHECK(!maxima.list_entries || entry_columns(maxima) <= kMaxElements / maxima.max_tokens,
               "args.max_seq_len", maxima.max_seq_len,
               "a value of max_tokens * max_seq_len / ratio below 2^44");
}

void check_positions(const char* field, const Tensor& positions, int64_t count) {
    for (int64_t t = 0; t < count; ++t) {
        const int64_t position = load_int(positions, t);
        SMLA_CHECK(fits_int32(position), text(field, "[", t, "]"), position,
                   text(INT32_MIN, " to ", INT32_MAX));
    }
}

BatchSize check_batch(const PlanMaxima& maxima, const PlanBatch& batch, bool readable,
                      const CheckContext& context) {
    BatchSize size;
    check_tensor("batch.seq_lens", batch.seq_lens, kInt32, {kAny}, context);
    size.requests = batch.seq_lens.shape[0];
    SMLA_CHECK(size.requests <= maxima.max_requests, "batch.seq_lens.shape[0]", size.requests,
               text("at most max_requests (", maxima.max_requests, ")"));
    check_tensor("batch.query_start_loc", batch.query_start_loc, kInt32, {size.requests + 1}, context);
    check_rows("batch.seq_lens", batch.seq_lens);
    check_rows("batch.query_start_loc", batch.query_start_loc);
    if (readable) {
        size.query_tokens = load_int(batch.query_start_loc, size.requests);
        SMLA_CHECK(size.query_tokens >= 0 && size.query_tokens <= maxima.max_tokens,
                   text("batch.query_start_loc[", size.requests, "]"), size.query_tokens,
                   text("0 to max_tokens (", maxima.max_tokens, ")"));
        check_lengths(maxima, batch, size);
        size.tokens = batch.tokens ? batch.tokens : size.query_tokens;
        SMLA_CHECK(
            size.tokens >= size.query_tokens && size.tokens <= maxima.max_tokens, "batch.tokens",
            batch.tokens,
            text("0, or ", size.query_tokens, " (the query tokens) to ", maxima.max_tokens, " (max_tokens)"));
    } else {
        size.tokens = batch.tokens;
        SMLA_CHECK(size.tokens >= 1 && size.tokens <= maxima.max_tokens, "batch.tokens", batch.tokens,
                   text("1 to max_tokens (", maxima.max_tokens,
                        "), because the host does not read query_start_loc"));
    }
    if (check_optional("batch.rope_positions", batch.rope_positions, kInts, {kAny}, context)) {
        SMLA_CHECK(batch.rope_positions.shape[0] >= size.query_tokens, "batch.rope_positions.shape[0]",
                   batch.rope_positions.shape[0],
                   text("at least ", size.query_tokens, " (the query tokens)"));
        if (readable) check_positions("batch.rope_positions", batch.rope_positions, size.query_tokens);
    }
    for (const GroupSpec& spec : kGroups) check_group(maxima, batch, spec, context, size);
    if (readable) check_pages(maxima, batch, size);
    return size;
}

}  // namespace smla
