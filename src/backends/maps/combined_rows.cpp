#include "backends/maps/rows.h"

#include "ops/own_memory.h"

namespace smla {

namespace {

struct GatheredRequest {
    int64_t first_row;     // first row of the request's part
    int64_t window_begin;  // row of the first gathered token
    int64_t first_token;   // its position
};

// Returns the row in column j; `selected` is the token's selected entry for that column.
int32_t combined_row(const GatheredRequest& request, const PrefillColumns& columns, int64_t position,
                     int32_t j, int32_t selected) {
    if (j >= columns.entries + columns.window) return -1;
    int64_t row = request.first_row + selected;
    if (j >= columns.entries) {
        const int64_t token = position - columns.window + 1 + (j - columns.entries);
        if (token < request.first_token) return -1;
        row = request.window_begin + token - request.first_token;
    } else if (selected < 0 || row >= request.window_begin) {
        return -1;
    }
    return row > INT32_MAX ? -1 : int32_t(row);
}

void check(const smla_combined_rows_args& args) {
    SMLA_CHECK(args.window >= 1, "args.window", args.window, "1 or more tokens");
    SMLA_CHECK(args.ratio >= 0, "args.ratio", args.ratio, "0 or more");
    SMLA_CHECK(args.topk >= 0 && (args.ratio > 0 || args.topk == 0), "args.topk", args.topk,
               args.ratio > 0 ? "0 or more" : "0, because args.ratio is 0");
    SMLA_CHECK(args.entries >= 0, "args.entries", args.entries, "0 or more");
    SMLA_CHECK(args.stride >= args.entries, "args.stride", args.stride,
               text("at least entries (", args.entries, ")"));
    check_tensor("args.seq_lens", args.seq_lens, kInt32, {kAny}, kOnHost);
    const int64_t requests = args.seq_lens.shape[0];
    check_tensor("args.query_start_loc", args.query_start_loc, kInt32, {requests + 1}, kOnHost);
    check_tensor("args.gather_lens", args.gather_lens, kInt32, {requests}, kOnHost);
    const int64_t tokens = load_int(args.query_start_loc, requests) - load_int(args.query_start_loc, 0);
    Tensor selected{};  // read with topk only
    if (args.topk > 0) {
        check_tensor("args.selected", args.selected, kInt32, {tokens, kAny}, kOnHost);
        SMLA_CHECK(args.selected.shape[1] >= args.topk, "args.selected.shape[1]", args.selected.shape[1],
                   text("topk (", args.topk, ") or more"));
        selected = args.selected;
    }
    check_tensor("args.rows", args.rows, kInt32, {tokens, kAny}, kOnHost);
    SMLA_CHECK(args.rows.shape[1] >= int64_t(args.topk) + args.window, "args.rows.shape[1]",
               args.rows.shape[1], text("topk + window (", int64_t(args.topk) + args.window, ") or more"));
    check_tensor("args.lens", args.lens, kInt32, {tokens}, kOnHost);
    check_own_memory({{"args.rows", args.rows}, {"args.lens", args.lens}},
                     {{"args.selected", selected},
                      {"args.query_start_loc", args.query_start_loc},
                      {"args.seq_lens", args.seq_lens},
                      {"args.gather_lens", args.gather_lens}});
    for (int64_t b = 0; b < requests; ++b) {
        const int64_t query = load_int(args.query_start_loc, b + 1) - load_int(args.query_start_loc, b);
        const int64_t length = load_int(args.seq_lens, b), gathered = load_int(args.gather_lens, b);
        SMLA_CHECK(query >= 0, text("args.query_start_loc[", b + 1, "]"),
                   load_int(args.query_start_loc, b + 1), "at least the previous value");
        SMLA_CHECK(length >= query, text("args.seq_lens[", b, "]"), length,
                   text("at least ", query, " (the query tokens of the request)"));
        SMLA_CHECK(gathered >= 0 && gathered <= length && gathered <= args.stride - args.entries,
                   text("args.gather_lens[", b, "]"), gathered, "0 to seq_len, and at most stride - entries");
    }
}

}  // namespace

void combined_rows(const smla_combined_rows_args& args) {
    check(args);
    const int64_t base = load_int(args.query_start_loc, 0);
    for (int64_t b = 0; b < args.seq_lens.shape[0]; ++b) {
        const int64_t begin = load_int(args.query_start_loc, b) - base,
                      end = load_int(args.query_start_loc, b + 1) - base, length = load_int(args.seq_lens, b);
        const int64_t first_row = args.stride * b;
        const GatheredRequest request{first_row, first_row + args.entries,
                                      length - load_int(args.gather_lens, b)};
        for (int64_t t = begin; t < end; ++t) {
            const int64_t position = length - (end - t);
            const PrefillColumns columns = prefill_columns(position, args.ratio, args.topk, args.window);
            for (int32_t j = 0; j < int32_t(args.rows.shape[1]); ++j) {
                const int32_t selected = j < columns.entries ? int32_t(load_int(args.selected, t, j)) : -1;
                *reinterpret_cast<int32_t*>(address(args.rows, t, j)) =
                    combined_row(request, columns, position, j, selected);
            }
            *reinterpret_cast<int32_t*>(address(args.lens, t)) = columns.entries + columns.window;
        }
    }
}

}  // namespace smla
