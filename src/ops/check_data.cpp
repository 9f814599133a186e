#include "ops/check_data.h"

#include "formats/format.h"
#include "ops/compress/compress.h"
#include "ops/score_select_blocks/score_select_blocks.h"

namespace smla {

namespace {

void add(IndexScan& scan, const IndexList& list) { scan.lists[scan.count++] = list; }

// Adds a scan of the first `tokens` values; the rest are padding.
void add_range(IndexScan& scan, smla_bad_kind kind, const char* field, const Tensor& values, int64_t tokens,
               int64_t low, int64_t high) {
    if (!present(values)) return;
    add(scan, {.kind = kind, .tokens = tokens, .values = values, .low = low, .high = high, .field = field});
}

void add_slots(IndexScan& scan, const Tensor& slots, const smla_cache& cache) {
    add(scan, {.rule = IndexRule::row_or_hole,
               .kind = SMLA_BAD_SLOT,
               .tokens = slots.shape[0],
               .values = slots,
               .rows = CacheView(cache).range(),
               .field = "args.slots"});
}

void add_source(IndexScan& scan, bool extra, const smla_attend_source& source) {
    if (source.cache.format == SMLA_FORMAT_NONE) return;
    add_range(scan, extra ? SMLA_BAD_EXTRA_LENGTH : SMLA_BAD_LENGTH,
              extra ? "args.extra.lengths" : "args.primary.lengths", source.lengths, source.rows.shape[0], 0,
              source.rows.shape[1]);
    add(scan, {.rule = IndexRule::listed_rows,
               .kind = extra ? SMLA_BAD_EXTRA_ROW : SMLA_BAD_ROW,
               .tokens = source.rows.shape[0],
               .per_token = source.rows.shape[1],
               .values = source.rows,
               .other = source.lengths,
               .rows = CacheView(source.cache).range(),
               .field = extra ? "args.extra.rows" : "args.primary.rows"});
}

void add_windows(IndexScan& scan, const Tensor& starts, const Tensor& ends, int64_t tokens, int64_t columns) {
    add_range(scan, SMLA_BAD_START, "args.starts", starts, tokens, 0, columns);
    add_range(scan, SMLA_BAD_END, "args.ends", ends, tokens, 0, columns);
}

void add_requests(IndexScan& scan, const Tensor& request_of_token, int64_t tokens, const Tensor& table) {
    add_range(scan, SMLA_BAD_REQUEST, "args.request_of_token", request_of_token, tokens, 0,
              table.shape[0] - 1);
}

void add_positions(IndexScan& scan, const Tensor& positions, int64_t tokens) {
    add_range(scan, SMLA_BAD_POSITION, "args.positions", positions, tokens, 0, INT64_MAX);
}

IndexScan scan_of_score(const smla_score_args& args, int64_t columns, const char* inside = "") {
    IndexScan scan;
    const int64_t tokens = args.q.shape[0];
    add_windows(scan, args.starts, args.ends, tokens, columns);
    if (present(args.block_table)) {
        add_requests(scan, args.request_of_token, tokens, args.block_table);
        add(scan, {.rule = IndexRule::score_blocks,
                   .tokens = tokens,
                   .per_token = ceil_div(columns, args.keys.page_tokens),
                   .other = args.ends,
                   .requests = args.request_of_token,
                   .table = args.block_table,
                   .high = columns,
                   .page_tokens = args.keys.page_tokens,
                   .pages = args.keys.pages,
                   .table_field = "args.block_table"});
    }
    for (int l = 0; l < scan.count; ++l) scan.lists[l].inside = inside;
    return scan;
}

// Adds the blocks of a selection's row table, up to each token's end.
void add_rows_selected(IndexScan& scan, const smla_select_args& args, const Tensor& requests,
                       const Tensor& ends, int64_t columns, const char* inside) {
    if (!present(args.rows)) return;
    const int64_t page_rows = args.page_rows ? args.page_rows : args.page_tokens;
    add(scan, {.rule = IndexRule::score_blocks,
               .tokens = args.rows.shape[0],
               .per_token = ceil_div(columns, args.page_tokens),
               .other = ends,
               .requests = requests,
               .table = args.row_table,
               .high = columns,
               .page_tokens = args.page_tokens,
               .pages = INT32_MAX / page_rows + 1,  // pages whose rows fit i32
               .table_field = "args.row_table",
               .inside = inside});
}

// "args.rows[2,5]", "args.cu[1]", "args.block_table.shape[1]"
std::string field_of(const IndexList& list, const Finding& found) {
    const bool in_table = found.kind == SMLA_BAD_BLOCK || found.kind == SMLA_BAD_TABLE_WIDTH;
    const bool in_other = list.rule == IndexRule::gather && found.kind == SMLA_BAD_START;
    std::string field = in_table ? list.table_field : in_other ? list.other_field : list.field;
    field.insert(sizeof "args" - 1, list.inside);
    if (found.kind == SMLA_BAD_TABLE_WIDTH) return field + ".shape[1]";
    if (found.column == kNoColumn) return text(field, "[", found.token, "]");
    return text(field, "[", found.token, ",", found.column, "]");
}

std::string wanted_of(const IndexList& list, const Finding& found) {
    switch (found.kind) {
        case SMLA_BAD_ROW:
        case SMLA_BAD_EXTRA_ROW:
        case SMLA_BAD_SLOT:
            return text("-1, or a row below ", list.rows.capacity, " at an offset below ",
                        list.rows.page_tokens, " in its page of ", list.rows.page_rows, " rows");
        case SMLA_BAD_TABLE_WIDTH: return text("at least ", found.high, " blocks for request ", found.token);
        default: break;
    }
    if (found.high == INT64_MAX) return text(found.low, " or more");
    const bool covered = list.rule == IndexRule::table_positions && found.kind == SMLA_BAD_POSITION;
    return text(found.low, " to ", found.high, covered ? " (covered by the table)" : "");
}

}  // namespace

FoundValue find_bad_value(const IndexScan& scan) {
    for (int l = 0; l < scan.count; ++l) {
        const IndexList& list = scan.lists[l];
        for (int64_t item = 0; item < list.tokens * list.per_token; ++item)
            if (const Finding found = examine(list, item); found.kind != SMLA_BAD_NONE)
                return BadValue{found.kind,  found.token,           found.column,
                                found.value, field_of(list, found), wanted_of(list, found)};
    }
    return {};
}

IndexScan index_scan(const smla_attend_args& args) {
    IndexScan scan;
    add_source(scan, false, args.primary);
    add_source(scan, true, args.extra);
    return scan;
}

IndexScan index_scan(const smla_score_args& args) { return scan_of_score(args, args.logits.shape[1]); }

IndexScan index_scan(const smla_select_args& args) {
    IndexScan scan;
    add_windows(scan, args.starts, args.ends, args.scores.shape[0], args.scores.shape[1]);
    if (!present(args.rows)) return scan;
    add_requests(scan, args.request_of_token, args.rows.shape[0], args.row_table);
    add_rows_selected(scan, args, args.request_of_token, args.ends, args.scores.shape[1], "");
    return scan;
}

IndexScan index_scan(const smla_score_select_args& args) {
    IndexScan scan = scan_of_score(args.score, args.columns, ".score");
    add_rows_selected(scan, args.select, args.score.request_of_token, args.score.ends, args.columns,
                      ".select");
    return scan;
}

IndexScan index_scan(const smla_score_select_blocks_args& args) {
    IndexScan scan = scan_of_score(score_args_of(args), args.columns);
    if (!present(args.blocks)) return scan;
    add(scan, {.rule = IndexRule::listed_rows,
               .kind = SMLA_BAD_CANDIDATE,
               .tokens = args.blocks.shape[0],
               .per_token = args.blocks.shape[1],
               .values = args.blocks,
               .rows = {.capacity = block_count(args)},
               .field = "args.blocks"});
    return scan;
}

IndexScan index_scan(const smla_write_args& args) {
    IndexScan scan;
    add_slots(scan, args.slots, args.cache);
    return scan;
}

IndexScan index_scan(const smla_save_state_args& args) {
    IndexScan scan;
    add_slots(scan, args.slots, args.state);
    add_positions(scan, args.positions, args.slots.shape[0]);
    return scan;
}

IndexScan index_scan(const smla_compress_args& args) {
    IndexScan scan;
    const int64_t tokens = args.slots.shape[0];
    add_slots(scan, args.slots, args.cache);
    add_positions(scan, args.positions, tokens);
    add_requests(scan, args.request_of_token, tokens, args.state_table);
    const int64_t window = overlap(args) * args.ratio, page_tokens = args.state.page_tokens;
    add(scan, {.rule = IndexRule::state_blocks,
               .tokens = tokens,
               .per_token = window / page_tokens + 2,  // a window may begin in the middle of a page
               .values = args.positions,
               .other = args.slots,
               .requests = args.request_of_token,
               .table = args.state_table,
               .page_tokens = page_tokens,
               .first_page = -1,
               .pages = args.state.pages,
               .ratio = args.ratio,
               .window = int32_t(window),
               .table_field = "args.state_table"});
    return scan;
}

IndexScan index_scan(const smla_gather_args& args) {
    IndexScan scan;
    const int64_t rows = args.out.shape[0], page_tokens = args.cache.page_tokens;
    add(scan, {.rule = IndexRule::gather,
               .kind = SMLA_BAD_CU,
               .tokens = args.block_table.shape[0],
               .per_token = 3 + rows / page_tokens + 2,
               .values = args.cu,
               .other = args.starts,
               .table = args.block_table,
               .high = rows,
               .page_tokens = page_tokens,
               .pages = args.cache.pages,
               .field = "args.cu",
               .table_field = "args.block_table",
               .other_field = "args.starts"});
    return scan;
}

IndexScan index_scan(const smla_copy_pages_args& args) {
    IndexScan scan;
    add(scan, {.rule = IndexRule::page_pairs,
               .kind = SMLA_BAD_PAGE,
               .tokens = args.pairs.shape[0],
               .per_token = 2,
               .values = args.pairs,
               .pages = args.target.pages,
               .source_pages = args.source.pages,
               .field = "args.pairs"});
    return scan;
}

IndexScan index_scan(const smla_map_args& args) {
    IndexScan scan;
    const int64_t tokens = args.positions.shape[0];
    add_requests(scan, args.request_of_token, tokens, args.block_table);
    const int64_t page_rows = args.page_rows ? args.page_rows : args.page_tokens;
    const int64_t reach = args.block_table.shape[1] * args.page_tokens,
                  pool = std::max<int64_t>(args.pool_tokens, 1);
    if (present(args.visible_tokens))
        add_range(scan, SMLA_BAD_POSITION, "args.visible_tokens", args.visible_tokens, tokens, 0, reach);
    add(scan, {.rule = IndexRule::table_positions,
               .kind = SMLA_BAD_POSITION,
               .tokens = tokens,
               .per_token = args.positions.shape[1] * pool,
               .values = args.positions,
               .other = args.limits,
               .requests = args.request_of_token,
               .table = args.block_table,
               .high = reach / pool - 1,
               .page_tokens = args.page_tokens,
               .pages = INT32_MAX / page_rows + 1,  // pages whose rows fit i32
               .ratio = int32_t(pool),
               .field = "args.positions",
               .table_field = "args.block_table"});
    return scan;
}

}  // namespace smla
