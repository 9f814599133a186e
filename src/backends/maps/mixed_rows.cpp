#include "backends/maps/rows.h"

#include "ops/map/map.h"
#include "ops/own_memory.h"

#include <algorithm>

namespace smla {

namespace {

constexpr int64_t kMixedColumns = 4;  // rows of i32 stay aligned to 16 bytes

// Returns the width of a row with up to `columns` compressed columns.
int64_t mixed_width(int64_t window, int64_t columns) {
    return window + ceil_div(columns, kMixedColumns) * kMixedColumns;
}

// Returns the row in compressed column c of a prefill token.
int32_t mixed_entry_row(const BlockTable& table, int64_t request, const PrefillColumns& columns, int32_t c,
                        int32_t selected) {
    return c < columns.entries ? row_of(table, request, selected) : -1;
}

int32_t& element(const Tensor& tensor, int64_t i, int64_t j = 0) {
    return *reinterpret_cast<int32_t*>(address(tensor, i, j));
}

// Shape of a call, read from the checked tensors.
struct MixedShape {
    int64_t decodes = 0, prefills = 0;  // tokens
    int64_t decode_columns = 0;
};

void check_pages(const char* field, int32_t tokens, const char* rows_field, int32_t rows) {
    SMLA_CHECK(tokens >= 1, field, tokens, "1 or more");
    SMLA_CHECK(rows == 0 || rows >= tokens, rows_field, rows, text("0, or at least ", tokens));
}

int64_t request_of(const smla_mixed_rows_args& args, int64_t token) {
    return load_int(args.request_of_token, token);
}
// Returns the number of tokens in a prefill token's request from this token to the end.
int64_t tokens_left(const smla_mixed_rows_args& args, int64_t token) {
    return load_int(args.query_start_loc, request_of(args, token) + 1) - token;
}
int64_t position_of(const smla_mixed_rows_args& args, int64_t token) {
    return load_int(args.seq_lens, request_of(args, token)) - tokens_left(args, token);
}

void check_decodes(const smla_mixed_rows_args& args, const MixedShape& shape) {
    if (!present(args.decode_lens)) return;
    for (int64_t t = 0; t < shape.decodes; ++t) {
        const int32_t listed = element(args.decode_lens, t);
        SMLA_CHECK(listed >= 0 && listed <= shape.decode_columns, text("args.decode_lens[", t, "]"), listed,
                   text("0 to ", shape.decode_columns, " (the columns of decode_entries)"));
    }
}

void check_prefills(const smla_mixed_rows_args& args, const MixedShape& shape) {
    const int64_t requests = args.seq_lens.shape[0];
    for (int64_t t = shape.decodes; t < shape.decodes + shape.prefills; ++t) {
        const int64_t request = request_of(args, t);
        SMLA_CHECK(request >= 0 && request < requests, text("args.request_of_token[", t, "]"), request,
                   text("0 to ", requests - 1));
        SMLA_CHECK(tokens_left(args, t) >= 1 && position_of(args, t) >= 0,
                   text("args.query_start_loc[", request + 1, "]"), tokens_left(args, t) + t,
                   text("above ", t, " (a token of the request), for at most seq_len query tokens"));
    }
}

MixedShape check(const smla_mixed_rows_args& args) {
    MixedShape shape;
    SMLA_CHECK(args.window >= 1, "args.window", args.window, "1 or more tokens");
    SMLA_CHECK(args.ratio >= 0, "args.ratio", args.ratio, "0 or more");
    SMLA_CHECK(args.local == 0 || args.local == 1, "args.local", args.local, "0 or 1");
    check_tensor("args.decode_window_rows", args.decode_window_rows, kInt32, {kAny, args.window}, kOnHost);
    shape.decodes = args.decode_window_rows.shape[0];
    if (check_optional("args.decode_entries", args.decode_entries, kInt32, {shape.decodes, kAny}, kOnHost))
        shape.decode_columns = args.decode_entries.shape[1];
    if (check_optional("args.decode_lens", args.decode_lens, kInt32, {shape.decodes}, kOnHost))
        SMLA_CHECK(!args.local, "args.decode_lens", "present", "absent, because args.local is 1");
    if (args.local) {
        check_tensor("args.is_valid", args.is_valid, dtypes(SMLA_U8), {kAny}, kOnHost);
        SMLA_CHECK(args.is_valid.shape[0] >= shape.decodes, "args.is_valid.shape[0]", args.is_valid.shape[0],
                   text("at least ", shape.decodes, " (the decode tokens)"));
    }
    SMLA_CHECK(args.topk >= 0, "args.topk", args.topk, "0 or more");
    if (check_optional("args.prefill_entries", args.prefill_entries, kInt32, {kAny, kAny}, kOnHost)) {
        shape.prefills = args.prefill_entries.shape[0];
        SMLA_CHECK(args.prefill_entries.shape[1] >= args.topk || shape.prefills == 0,
                   "args.prefill_entries.shape[1]", args.prefill_entries.shape[1],
                   text("topk (", args.topk, ") or more"));
    }
    const int64_t tokens = shape.decodes + shape.prefills;
    check_tensor("args.seq_lens", args.seq_lens, kInt32, {kAny}, kOnHost);
    const int64_t requests = args.seq_lens.shape[0];
    check_tensor("args.query_start_loc", args.query_start_loc, kInt32, {requests + 1}, kOnHost);
    check_tensor("args.request_of_token", args.request_of_token, kInt32, {kAny}, kOnHost);
    SMLA_CHECK(args.request_of_token.shape[0] >= tokens, "args.request_of_token.shape[0]",
               args.request_of_token.shape[0], text("at least ", tokens, " (the tokens of the step)"));
    check_tensor("args.window_table", args.window_table, kInt32, {requests, kAny}, kOnHost);
    check_pages("args.window_page_tokens", args.window_page_tokens, "args.window_page_rows",
                args.window_page_rows);
    if (args.ratio > 0) {
        check_tensor("args.entry_table", args.entry_table, kInt32, {requests, kAny}, kOnHost);
        check_pages("args.entry_page_tokens", args.entry_page_tokens, "args.entry_page_rows",
                    args.entry_page_rows);
    }
    const int64_t width = mixed_width(args.window, std::max<int64_t>(args.topk, shape.decode_columns));
    check_tensor("args.rows", args.rows, kInt32, {tokens, width}, kOnHost);
    check_tensor("args.lens", args.lens, kInt32, {tokens}, kOnHost);
    const Tensor unread{};
    check_own_memory({{"args.rows", args.rows}, {"args.lens", args.lens}},
                     {{"args.decode_window_rows", args.decode_window_rows},
                      {"args.decode_entries", args.decode_entries},
                      {"args.decode_lens", args.decode_lens},
                      {"args.is_valid", args.local ? args.is_valid : unread},
                      {"args.prefill_entries", args.prefill_entries},
                      {"args.query_start_loc", args.query_start_loc},
                      {"args.seq_lens", args.seq_lens},
                      {"args.request_of_token", args.request_of_token},
                      {"args.window_table", args.window_table},
                      {"args.entry_table", args.ratio > 0 ? args.entry_table : unread}});
    check_decodes(args, shape);
    check_prefills(args, shape);
    return shape;
}

// Writes the compressed columns of a decode token and returns the count of valid ones. This count is the
// length of a prefix, so rows of local entries are packed to the left.
int32_t decode_entries(const smla_mixed_rows_args& args, const BlockTable& table, const MixedShape& shape,
                       int64_t t) {
    const int64_t request = request_of(args, t);
    int64_t found = 0;
    for (int64_t c = 0; c < shape.decode_columns; ++c) {
        const int32_t given = element(args.decode_entries, t, c);
        if (!args.local) {
            element(args.rows, t, args.window + c) = given;
        } else if (const int32_t row = row_of(table, request, given); row >= 0) {
            element(args.rows, t, args.window + found++) = row;
        }
    }
    if (!args.local)
        return present(args.decode_lens) ? element(args.decode_lens, t) : int32_t(shape.decode_columns);
    for (int64_t c = found; c < shape.decode_columns; ++c) element(args.rows, t, args.window + c) = -1;
    return *reinterpret_cast<const uint8_t*>(address(args.is_valid, t)) ? int32_t(found) : 0;
}

}  // namespace

void mixed_rows(const smla_mixed_rows_args& args) {
    const MixedShape shape = check(args);
    const BlockTable window =
                         block_table_of(args.window_table, args.window_page_tokens, args.window_page_rows),
                     entries = args.ratio > 0 ? block_table_of(args.entry_table, args.entry_page_tokens,
                                                               args.entry_page_rows)
                                              : BlockTable{};
    const int64_t width = args.rows.shape[1];
    for (int64_t t = 0; t < shape.decodes; ++t) {
        for (int64_t j = 0; j < args.window; ++j)
            element(args.rows, t, j) = element(args.decode_window_rows, t, j);
        element(args.lens, t) = args.window + decode_entries(args, entries, shape, t);
        for (int64_t j = args.window + shape.decode_columns; j < width; ++j) element(args.rows, t, j) = -1;
    }
    for (int64_t i = 0; i < shape.prefills; ++i) {
        const int64_t t = shape.decodes + i, request = request_of(args, t), position = position_of(args, t);
        const PrefillColumns columns = prefill_columns(position, args.ratio, args.topk, args.window);
        for (int32_t j = 0; j < args.window; ++j)
            element(args.rows, t, j) = window_row(window, request, int32_t(position) + 1, args.window, j);
        for (int32_t c = 0; c < int32_t(width) - args.window; ++c) {
            const int32_t selected = c < columns.entries ? element(args.prefill_entries, i, c) : -1;
            element(args.rows, t, args.window + c) = mixed_entry_row(entries, request, columns, c, selected);
        }
        element(args.lens, t) = args.window + columns.entries;
    }
}

}  // namespace smla
