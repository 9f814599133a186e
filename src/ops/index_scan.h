// Finds bad indices that hot calls silently treat as masked. A scan has the integer lists that a call reads,
// and a rule for each list. The first bad item of the first list that has one is reported. Host and GPU share
// the rules. A GPU examines items in any order, so a rule never reads outside of its tensors, even if earlier
// lists are invalid, and does not repeat what the rule of an earlier list reports.
#pragma once

#include "core/ints.h"
#include "formats/row_range.h"

#include <smla/stages.h>

namespace smla {

// Finding as in smla_error_word; kind NONE means no error. Valid values are in [low, high].
struct Finding {
    smla_bad_kind kind = SMLA_BAD_NONE;
    int64_t token = 0, column = 0, value = 0, low = 0, high = 0;
};
constexpr int64_t kNoColumn = -1;  // column in tensors of one dimension

enum class IndexRule : int32_t {
    range,           // values[i] in [low, high]
    row_or_hole,     // values[i] is -1 or in rows
    listed_rows,     // values[t,j] is -1 or in rows, below token t's length
    score_blocks,    // blocks of the table up to a token's end, or all blocks
    state_blocks,    // blocks that a token pools if it closes an entry
    gather,          // ranges of a request, and their blocks
    page_pairs,      // values[i,side] is a page of its side
    table_positions  // values[t,j] before the limit is -1 or covered by the table, whose blocks are pages
};

struct IndexList {
    IndexRule rule = IndexRule::range;
    smla_bad_kind kind = SMLA_BAD_NONE;  // kind of a bad value
    int64_t tokens = 0, per_token = 1;   // items in order of tokens
    smla_tensor values{};
    smla_tensor other{};  // lengths, ends, slots, starts or limits, depending on the rule
    smla_tensor requests{}, table{};
    int64_t low = 0, high = 0;                            // of values
    RowRange rows;                                        // that values name
    int64_t page_tokens = 1;                              // of the table's pages
    int64_t first_page = 0, pages = 0, source_pages = 0;  // pages of the table's blocks: [first_page, pages)
    int32_t ratio = 1, window = 1;  // tokens per entry or pool, and tokens that an entry pools
    const char *field = "", *table_field = "", *other_field = "";  // only for error texts
    const char* inside = "";  // member of args that contains the fields, ".score"
};

struct IndexScan {
    static constexpr int kMost = 5;
    int count = 0;
    IndexList lists[kMost];
};

namespace index_rules {

SMLA_HOST_DEVICE inline bool given(const smla_tensor& tensor) { return tensor.ndim != 0; }
// Divides 32 bits if possible, because a GPU divides 64 bits in about 100 instructions.
SMLA_HOST_DEVICE inline int64_t quotient(int64_t a, int64_t b) {
    return ((a | b) >> 32) == 0 ? int64_t(uint32_t(a) / uint32_t(b)) : a / b;
}
SMLA_HOST_DEVICE inline int64_t blocks_of(int64_t tokens, int64_t page_tokens) {
    const int64_t whole = quotient(tokens, page_tokens);
    return whole + (tokens != whole * page_tokens);
}

SMLA_HOST_DEVICE inline Finding within(smla_bad_kind kind, int64_t token, int64_t column, int64_t value,
                                       int64_t low, int64_t high) {
    if (value >= low && value <= high) return {};
    return {kind, token, column, value, low, high};
}

// Checks a block in a request's row of the table; the call needs the blocks below `end`.
SMLA_HOST_DEVICE inline Finding block(const IndexList& list, int64_t request, int64_t block, int64_t end) {
    if (request < 0 || request >= list.table.shape[0]) return {};
    const int64_t width = list.table.shape[1];
    if (block >= width) return {SMLA_BAD_TABLE_WIDTH, request, block, width, end, end};
    return within(SMLA_BAD_BLOCK, request, block, load_int(list.table, request, block), list.first_page,
                  list.pages - 1);
}

SMLA_HOST_DEVICE inline Finding row(const IndexList& list, int64_t token, int64_t column, int64_t row) {
    if (row == -1 || !list.rows.hole(row)) return {};
    return {list.kind, token, column, row, -1, list.rows.capacity - 1};
}

SMLA_HOST_DEVICE inline Finding listed_row(const IndexList& list, int64_t token, int64_t j) {
    if (given(list.other) && j >= load_int(list.other, token)) return {};
    return row(list, token, j, load_int(list.values, token, j));
}

SMLA_HOST_DEVICE inline Finding score_block(const IndexList& list, int64_t token, int64_t b) {
    const int64_t end = given(list.other) ? load_int(list.other, token) : list.high;
    const int64_t blocks = blocks_of(end, list.page_tokens);
    if (end < 0 || end > list.high || b >= blocks) return {};
    return block(list, load_int(list.requests, token), b, blocks);
}

// Checks the pages that a token pools if it closes an entry. Block -1 is no error, because it marks a freed
// page, which a window may still include.
SMLA_HOST_DEVICE inline Finding state_block(const IndexList& list, int64_t token, int64_t b) {
    const int64_t last = load_int(list.values, token);  // position of the token
    if (last < 0 || last % list.ratio != list.ratio - 1 || load_int(list.other, token) == -1) return {};
    const int64_t first = (last < list.window ? 0 : last - list.window + 1) / list.page_tokens;
    const int64_t final = last / list.page_tokens;
    if (b > final - first) return {};
    return block(list, load_int(list.requests, token), first + b, final < INT64_MAX ? final + 1 : final);
}

// Checks an item of a request: the begin of its range, the end, its first token, then blocks.
SMLA_HOST_DEVICE inline Finding gathered(const IndexList& list, int64_t request, int64_t item) {
    const int64_t begin = load_int(list.values, request), end = load_int(list.values, request + 1);
    const int64_t start = given(list.other) ? load_int(list.other, request) : 0;
    if (item == 0)
        return begin >= 0 ? Finding{} : Finding{SMLA_BAD_CU, request, kNoColumn, begin, 0, list.high};
    if (item == 1) return within(SMLA_BAD_CU, request + 1, kNoColumn, end, begin, list.high);
    if (item == 2) return within(SMLA_BAD_START, request, kNoColumn, start, 0, INT64_MAX);
    if (begin < 0 || end <= begin || end > list.high || start < 0) return {};
    const int64_t at = start / list.page_tokens + item - 3;
    const int64_t blocks = blocks_of(start + end - begin, list.page_tokens);
    return at < blocks ? block(list, request, at, blocks) : Finding{};
}

// Checks item i: token i % ratio of pool i / ratio, or a position if ratio is 1.
SMLA_HOST_DEVICE inline Finding table_position(const IndexList& list, int64_t token, int64_t i) {
    const int64_t j = i / list.ratio;
    if (given(list.other) && j >= load_int(list.other, token)) return {};
    const int64_t position = load_int(list.values, token, j);
    if (position < -1 || position > list.high) return {list.kind, token, j, position, -1, list.high};
    const int64_t at = quotient(position * list.ratio + i % list.ratio, list.page_tokens);
    return position < 0 ? Finding{} : block(list, load_int(list.requests, token), at, at + 1);
}

}  // namespace index_rules

// Returns the error in item `item` of a list, item < tokens * per_token.
SMLA_HOST_DEVICE inline Finding examine(const IndexList& list, int64_t item) {
    using namespace index_rules;
    const int64_t t = quotient(item, list.per_token), j = item - t * list.per_token;
    switch (list.rule) {
        case IndexRule::range:
            return within(list.kind, t, kNoColumn, load_int(list.values, t), list.low, list.high);
        case IndexRule::row_or_hole: return row(list, t, kNoColumn, load_int(list.values, t));
        case IndexRule::listed_rows: return listed_row(list, t, j);
        case IndexRule::score_blocks: return score_block(list, t, j);
        case IndexRule::state_blocks: return state_block(list, t, j);
        case IndexRule::gather: return gathered(list, t, j);
        case IndexRule::page_pairs:
            return within(list.kind, t, j, load_int(list.values, t, j), 0,
                          (j == 0 ? list.source_pages : list.pages) - 1);
        case IndexRule::table_positions: return table_position(list, t, j);
    }
    return {};
}

}  // namespace smla
