#include "ops/check_data.h"

#include "formats/format.h"
#include "ops/compress/compress.h"

#include <algorithm>

namespace smla {

namespace {

constexpr int64_t kNoColumn = -1;  // of values in tensors of one dimension

FoundValue bad(smla_bad_kind kind, int64_t token, int64_t column, int64_t value, const std::string& field,
               const std::string& wanted) {
    const std::string at = column == kNoColumn ? text("[", token, "]") : text("[", token, ",", column, "]");
    return BadValue{kind, token, column, value, field + at, wanted};
}

bool is_row_or_hole(const CacheView& cache, int64_t row) { return row == -1 || !cache.hole(row); }

std::string wanted_row(const CacheView& cache) {
    return text("-1, or a row of the cache: below ", cache.capacity, " and at an offset below ",
                cache.page_tokens, " in its page of ", cache.page_rows);
}

FoundValue find_bad_slot(const Tensor& slots, const smla_cache& cache) {
    const CacheView view(cache);
    for (int64_t t = 0; t < slots.shape[0]; ++t) {
        const int64_t slot = load_int(slots, t);
        if (!is_row_or_hole(view, slot))
            return bad(SMLA_BAD_SLOT, t, kNoColumn, slot, "args.slots", wanted_row(view));
    }
    return {};
}

FoundValue find_outside(smla_bad_kind kind, const std::string& field, const Tensor& values, int64_t low,
                        int64_t high) {
    if (!present(values)) return {};
    for (int64_t i = 0; i < values.shape[0]; ++i) {
        const int64_t value = load_int(values, i);
        if (value < low || value > high)
            return bad(kind, i, kNoColumn, value, field, text(low, " to ", high));
    }
    return {};
}

FoundValue find_bad_row(const char* name, bool extra, const smla_attend_source& source) {
    if (source.cache.format == SMLA_FORMAT_NONE) return {};
    const CacheView cache(source.cache);
    const int64_t width = source.rows.shape[1];
    const std::string prefix = text("args.", name);
    if (FoundValue found = find_outside(extra ? SMLA_BAD_EXTRA_LENGTH : SMLA_BAD_LENGTH, prefix + ".lengths",
                                        source.lengths, 0, width))
        return found;
    for (int64_t t = 0; t < source.rows.shape[0]; ++t) {
        const int64_t length = present(source.lengths) ? load_int(source.lengths, t) : width;
        for (int64_t j = 0; j < length; ++j) {
            const int64_t row = load_int(source.rows, t, j);
            if (!is_row_or_hole(cache, row))
                return bad(extra ? SMLA_BAD_EXTRA_ROW : SMLA_BAD_ROW, t, j, row, prefix + ".rows",
                           wanted_row(cache));
        }
    }
    return {};
}

// Blocks [first, last) of a request's line of the table: at least `lowest`, and pages of the cache.
FoundValue find_bad_block(const char* field, const Tensor& table, int64_t request, int64_t first,
                          int64_t last, int64_t lowest, int64_t pages) {
    for (int64_t block = first; block < last; ++block) {
        if (block >= table.shape[1])
            return BadValue{SMLA_BAD_TABLE_WIDTH,
                            request,
                            block,
                            table.shape[1],
                            text(field, ".shape[1]"),
                            text("at least ", last, " blocks for request ", request)};
        const int64_t page = load_int(table, request, block);
        if (page < lowest || page >= pages)
            return bad(SMLA_BAD_BLOCK, request, block, page, field, text(lowest, " to ", pages - 1));
    }
    return {};
}

FoundValue find_bad_window(const Tensor& starts, const Tensor& ends, int64_t columns) {
    if (FoundValue found = find_outside(SMLA_BAD_START, "args.starts", starts, 0, columns)) return found;
    return find_outside(SMLA_BAD_END, "args.ends", ends, 0, columns);
}

FoundValue find_bad_score(const smla_score_args& args, int64_t columns) {
    if (FoundValue found = find_bad_window(args.starts, args.ends, columns)) return found;
    if (!present(args.block_table)) return {};
    if (FoundValue found = find_outside(SMLA_BAD_REQUEST, "args.request_of_token", args.request_of_token, 0,
                                        args.block_table.shape[0] - 1))
        return found;
    for (int64_t t = 0; t < args.q.shape[0]; ++t) {
        const int64_t blocks = ceil_div(load_int(args.ends, t), args.keys.page_tokens);
        if (FoundValue found =
                find_bad_block("args.block_table", args.block_table, load_int(args.request_of_token, t), 0,
                               blocks, 0, args.keys.pages))
            return found;
    }
    return {};
}

}  // namespace

FoundValue find_bad_value(const smla_attend_args& args) {
    if (FoundValue found = find_bad_row("primary", false, args.primary)) return found;
    return find_bad_row("extra", true, args.extra);
}

FoundValue find_bad_value(const smla_score_args& args) { return find_bad_score(args, args.logits.shape[1]); }

FoundValue find_bad_value(const smla_select_args& args) {
    return find_bad_window(args.starts, args.ends, args.scores.shape[1]);
}

FoundValue find_bad_value(const smla_score_select_args& args) {
    FoundValue found = find_bad_score(args.score, args.columns);
    if (found) found->field.insert(sizeof "args" - 1, ".score");
    return found;
}

FoundValue find_bad_value(const smla_write_args& args) { return find_bad_slot(args.slots, args.cache); }

FoundValue find_bad_value(const smla_save_state_args& args) {
    if (FoundValue found = find_bad_slot(args.slots, args.state)) return found;
    return find_outside(SMLA_BAD_POSITION, "args.positions", args.positions, 0, INT64_MAX);
}

FoundValue find_bad_value(const smla_compress_args& args) {
    if (FoundValue found = find_bad_slot(args.slots, args.cache)) return found;
    if (FoundValue found = find_outside(SMLA_BAD_POSITION, "args.positions", args.positions, 0, INT64_MAX))
        return found;
    if (FoundValue found = find_outside(SMLA_BAD_REQUEST, "args.request_of_token", args.request_of_token, 0,
                                        args.state_table.shape[0] - 1))
        return found;
    // The pages that closing tokens pool from; -1 marks one that was given up, as a window may reach back to.
    const int64_t window = overlap(args.ratio) * args.ratio, page_tokens = args.state.page_tokens;
    for (int64_t t = 0; t < args.slots.shape[0]; ++t) {
        const int64_t end = load_int(args.positions, t) + 1;
        if (end % args.ratio != 0 || load_int(args.slots, t) == -1) continue;
        const int64_t first = std::max<int64_t>(end - window, 0) / page_tokens;
        if (FoundValue found =
                find_bad_block("args.state_table", args.state_table, load_int(args.request_of_token, t),
                               first, ceil_div(end, page_tokens), -1, args.state.pages))
            return found;
    }
    return {};
}

FoundValue find_bad_value(const smla_gather_args& args) {
    for (int64_t r = 0; r < args.block_table.shape[0]; ++r) {
        const int64_t begin = load_int(args.cu, r), end = load_int(args.cu, r + 1);
        if (begin < 0)
            return bad(SMLA_BAD_CU, r, kNoColumn, begin, "args.cu", text("0 to ", args.out.shape[0]));
        if (end < begin || end > args.out.shape[0])
            return bad(SMLA_BAD_CU, r + 1, kNoColumn, end, "args.cu", text(begin, " to ", args.out.shape[0]));
        const int64_t start = present(args.starts) ? load_int(args.starts, r) : 0;
        if (start < 0) return bad(SMLA_BAD_START, r, kNoColumn, start, "args.starts", "0 or more");
        if (begin == end) continue;
        const int64_t page_tokens = args.cache.page_tokens;
        if (FoundValue found =
                find_bad_block("args.block_table", args.block_table, r, start / page_tokens,
                               ceil_div(start + end - begin, page_tokens), 0, args.cache.pages))
            return found;
    }
    return {};
}

FoundValue find_bad_value(const smla_copy_pages_args& args) {
    const int64_t pages[] = {args.source.pages, args.target.pages};
    for (int64_t i = 0; i < args.pairs.shape[0]; ++i)
        for (int64_t side = 0; side < 2; ++side) {
            const int64_t page = load_int(args.pairs, i, side);
            if (page < 0 || page >= pages[side])
                return bad(SMLA_BAD_PAGE, i, side, page, "args.pairs", text("0 to ", pages[side] - 1));
        }
    return {};
}

FoundValue find_bad_value(const smla_map_args& args) {
    if (FoundValue found = find_outside(SMLA_BAD_REQUEST, "args.request_of_token", args.request_of_token, 0,
                                        args.block_table.shape[0] - 1))
        return found;
    const int64_t reach = args.block_table.shape[1] * args.page_tokens;
    const int64_t page_rows = args.page_rows ? args.page_rows : args.page_tokens;
    for (int64_t t = 0; t < args.positions.shape[0]; ++t)
        for (int64_t j = 0; j < args.positions.shape[1]; ++j) {
            const int64_t position = load_int(args.positions, t, j);
            if (position < -1 || position >= reach)
                return bad(SMLA_BAD_POSITION, t, j, position, "args.positions",
                           text("-1 to ", reach - 1, ", what the table covers"));
            if (position < 0) continue;
            const int64_t block = position / args.page_tokens, limit = INT32_MAX / page_rows;
            if (FoundValue found =
                    find_bad_block("args.block_table", args.block_table, load_int(args.request_of_token, t),
                                   block, block + 1, -1, limit + 1))
                return found;
        }
    return {};
}

}  // namespace smla
