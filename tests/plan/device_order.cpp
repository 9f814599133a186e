#include "device_order.h"

#include <algorithm>

namespace smla::test {

namespace {

void place_requests(const PlanJob& p) {
    int32_t* starts = p.starts_in_step;
    starts[0] = 0;
    for (int64_t r = 0; r < p.requests; ++r) starts[r + 1] = start_in_step(p, r + 1, starts[r]);
    const auto query = [&](int64_t r) { return starts[r + 1] - starts[r]; };
    const int32_t first = p.requests > 0 ? query(0) : 0;
    QueryLengths all;
    for (int64_t r = p.requests; r-- > 0;) all.add(r, query(r), first, p.threshold, p.uniform);
    const int64_t decodes = decode_requests(all, p.requests, first, p.threshold, p.uniform);
    const int32_t split[] = {int32_t(decodes), int32_t(p.requests - decodes), starts[decodes],
                             starts[p.requests] - starts[decodes]};
    std::copy(split, split + 4, p.out.batch_split);
    p.reach[1] = std::max(p.reach[0], int32_t(p.tokens));
    p.reach[0] = int32_t(p.tokens);
    if (!p.out.ragged_cu) return;
    int64_t keys = 0;
    p.out.ragged_cu[0] = 0;
    for (int64_t r = 0; r < p.max_requests; ++r) {
        if (r >= decodes && r < p.requests) keys += gathered_keys(p, r, query(r));
        p.out.ragged_cu[r + 1] = within_int32(keys);
    }
}

}  // namespace

void build_in_device_order(const PlanJob& p, Device&, smla_stream) {
    place_requests(p);
    const int32_t* starts = p.starts_in_step;
    for (int64_t t = p.reach[1]; t-- > 0;) {
        PlanToken token;
        if (t < starts[p.requests]) token = token_of(p, starts, request_of(starts, p.requests, t), t);
        const Visible sees = place_token(p, t, token);
        for (int32_t j = p.out.window_rows ? p.window : 0; j-- > 0;)
            p.out.window_rows[t * p.window + j] =
                window_row(p.window_table, token.request, sees.tokens, p.window, j);
        if (!p.out.entry_rows) continue;
        for (int32_t c = std::max(sees.entries, p.listed[t]); c-- > 0;)
            p.out.entry_rows[t * p.entry_columns + c] =
                c < sees.entries ? row_of(p.entry_table, token.request, c) : -1;
        p.listed[t] = sees.entries;
    }
}

}  // namespace smla::test
