// How a grid scans the lists of a call (ops/index_scan.h): warps share the lists in pieces of 32 units, and a
// filter of a few instructions recognizes most valid values. The rules, whose code is long and rarely loaded,
// examine only the other values. The filter may doubt a valid value, but never passes an invalid one.
#pragma once

#include "core/workspace.h"
#include "ops/index_scan.h"

namespace smla::cuda {

enum class ListFilter : int32_t {
    none,     // every item is examined by its rule
    values,   // in one dimension, one item per unit
    vectors,  // in two dimensions, 16 bytes per unit
    table     // a token's items name blocks in its request's row of a table
};

constexpr int kVector = 4, kPiece = 32;  // items of a unit (one item for none and values); units of a piece
struct alignas(16) IndexVector {
    int32_t values[kVector];  // 4 bytes each
};

struct ListPart {
    int64_t end = 0;  // pieces up to the end of this list
    ListFilter filter = ListFilter::none;
    uint32_t line_units = 0;  // units of a token
    int64_t units = 0;
    const int32_t* lines = nullptr;
    int64_t line_stride = 0;
    int64_t low = 0, high = 0;                // range of valid values
    uint32_t page_rows = 0, page_tokens = 0;  // except those between the tokens of two pages; 0: no gaps
};

struct ListParts {
    ListPart of[IndexScan::kMost];
    int64_t pieces = 0;
};

namespace index_parts {

// Sets the filter's range. Returns false if 32-bit arithmetic cannot check these rows.
inline bool take_rows(ListPart& part, const RowRange& rows) {
    if (rows.capacity > INT32_MAX || rows.page_rows > INT32_MAX) return false;
    part.low = -1, part.high = rows.capacity - 1;
    if (rows.page_tokens >= rows.page_rows) return true;
    part.page_rows = uint32_t(rows.page_rows), part.page_tokens = uint32_t(rows.page_tokens);
    return true;
}

inline bool in_vectors(const IndexList& list) {
    const smla_tensor& values = list.values;
    return values.dtype == SMLA_I32 && values.ndim == 2 && values.stride_elems[1] == 1 &&
           values.stride_elems[0] % kVector == 0 && list.per_token % kVector == 0 &&
           reinterpret_cast<uintptr_t>(values.data) % sizeof(IndexVector) == 0;
}

// Returns whether the filter can compute with 32 bits.
inline bool in_table(const IndexList& list) {
    return list.page_tokens <= INT32_MAX && list.per_token <= INT32_MAX &&
           (list.rule != IndexRule::table_positions || list.high < INT32_MAX / list.ratio - 1);
}

inline ListPart part_of(const IndexList& list) {
    ListPart part;
    part.units = list.tokens * list.per_token;
    const auto by_vectors = [&](ListFilter filter) {
        const int64_t units = ceil_div(list.per_token, kVector);
        if (list.tokens * units > UINT32_MAX) return;
        part.filter = filter, part.line_units = uint32_t(units), part.units = list.tokens * units;
    };
    switch (list.rule) {
        case IndexRule::range:
            part.filter = ListFilter::values;
            part.low = list.low, part.high = list.high;
            break;
        case IndexRule::row_or_hole:
            if (take_rows(part, list.rows)) part.filter = ListFilter::values;
            break;
        case IndexRule::listed_rows:
            if (!in_vectors(list) || !take_rows(part, list.rows)) break;
            part.lines = static_cast<const int32_t*>(list.values.data);
            part.line_stride = list.values.stride_elems[0];
            by_vectors(ListFilter::vectors);
            break;
        case IndexRule::score_blocks:
        case IndexRule::state_blocks:
        case IndexRule::table_positions:
            if (in_table(list)) by_vectors(ListFilter::table);
            break;
        default: break;
    }
    return part;
}

SMLA_HOST_DEVICE inline bool between_pages(const ListPart& part, int64_t value) {
    return value >= 0 && uint32_t(value) % part.page_rows >= part.page_tokens;
}

SMLA_HOST_DEVICE inline bool doubts(const ListPart& part, int64_t value) {
    if (value < part.low || value > part.high) return true;
    return part.page_rows != 0 && between_pages(part, value);
}

SMLA_HOST_DEVICE inline bool doubts(const ListPart& part, const IndexVector& vector) {
    int32_t least = vector.values[0], most = least;
    for (const int32_t value : vector.values) {
        least = value < least ? value : least;
        most = value > most ? value : most;
    }
    if (least < part.low || most > part.high) return true;
    if (part.page_rows == 0) return false;
    bool doubtful = false;
    for (const int32_t value : vector.values) doubtful |= between_pages(part, value);
    return doubtful;
}

constexpr int64_t kNoBlock = -1, kDoubtfulBlock = INT64_MAX;

// Returns the block, in its request's row of the table, that item j of a token names, by the rules of
// index_scan.h in 32 bits.
SMLA_HOST_DEVICE inline int64_t block_named(const IndexList& list, uint32_t j, int64_t value, int64_t other) {
    const auto page_tokens = uint32_t(list.page_tokens), ratio = uint32_t(list.ratio);
    if (list.rule == IndexRule::score_blocks) return int64_t(j) * page_tokens < other ? int64_t(j) : kNoBlock;
    if (list.rule == IndexRule::state_blocks) {
        if (value < 0) return kNoBlock;
        if (value > INT32_MAX) return kDoubtfulBlock;
        if ((uint32_t(value) + 1) % ratio != 0) return kNoBlock;
        const int64_t first = value < list.window ? 0 : value - list.window + 1;
        const uint32_t block = uint32_t(first) / page_tokens + j;
        return block <= uint32_t(value) / page_tokens ? int64_t(block) : kNoBlock;
    }
    if (value == -1 || int64_t(j / ratio) >= other) return kNoBlock;
    if (value < -1 || value > list.high) return kDoubtfulBlock;
    return (uint32_t(value) * ratio + j % ratio) / page_tokens;
}

// Issues all loads of a step before using any, for two round trips to memory instead of four.
SMLA_HOST_DEVICE inline bool doubts_blocks(const IndexList& list, int64_t token, uint32_t first, int count) {
    const bool positions = list.rule == IndexRule::table_positions;
    const int64_t request = load_int(list.requests, token);
    const int64_t other = index_rules::given(list.other) ? load_int(list.other, token) : INT64_MAX;
    int64_t values[kVector] = {};
    for (int i = 0; i < kVector; ++i) {
        if (index_rules::given(list.values))
            values[i] =
                load_int(list.values, token, positions ? (first + (i < count ? i : 0)) / list.ratio : 0);
    }
    if (request < 0 || request >= list.table.shape[0]) return false;  // the scan of `requests` reports this
    int64_t pages[kVector];
    for (int i = 0; i < kVector; ++i) {
        const int64_t block = i < count ? block_named(list, first + i, values[i], other) : kNoBlock;
        const bool inside = block != kNoBlock && block < list.table.shape[1];
        pages[i] = inside              ? load_int(list.table, request, block)
                   : block == kNoBlock ? list.pages - 1
                                       : list.pages;
    }
    bool doubtful = false;
    for (const int64_t page : pages) doubtful |= page < list.first_page || page >= list.pages;
    return doubtful;
}

// Returns the first invalid one of `count` items starting at `item`, or -1. Out of line, so that lists that
// the filter passes load neither its instructions nor its parameters.
[[gnu::noinline]] SMLA_HOST_DEVICE inline int64_t first_bad(const IndexList& list, int64_t item, int count) {
    for (const int64_t end = item + count; item < end; ++item)
        if (examine(list, item).kind != SMLA_BAD_NONE) return item;
    return -1;
}

struct UnitItems {
    int64_t token, first;  // first: the unit's first item, counted within the token
    int count;
};
SMLA_HOST_DEVICE inline UnitItems items_of(const ListPart& part, const IndexList& list, int64_t unit) {
    const uint32_t token = uint32_t(unit) / part.line_units;
    const uint32_t first = kVector * (uint32_t(unit) - token * part.line_units);
    const int64_t left = list.per_token - first;
    return {token, first, left < kVector ? int(left) : kVector};
}

SMLA_HOST_DEVICE inline bool doubts_unit(const ListPart& part, const IndexList& list, int64_t unit) {
    if (part.filter == ListFilter::values) return doubts(part, load_int(list.values, unit));
    const UnitItems items = items_of(part, list, unit);
    if (part.filter == ListFilter::table)
        return doubts_blocks(list, items.token, uint32_t(items.first), items.count);
    const int32_t* const values = part.lines + items.token * part.line_stride + items.first;
    return doubts(part, *reinterpret_cast<const IndexVector*>(values));
}

// Returns the first invalid item of a unit, or -1.
SMLA_HOST_DEVICE inline int64_t scan_unit(const ListPart& part, const IndexList& list, int64_t unit) {
    const bool filtered = part.filter != ListFilter::none;
    if (filtered && !doubts_unit(part, list, unit)) return -1;
    if (!filtered || part.filter == ListFilter::values) return first_bad(list, unit, 1);
    const UnitItems items = items_of(part, list, unit);
    return first_bad(list, items.token * list.per_token + items.first, items.count);
}

}  // namespace index_parts

// Divides the lists into pieces, depending only on shapes.
inline ListParts parts_of(const IndexScan& scan) {
    ListParts parts;
    for (int l = 0; l < IndexScan::kMost; ++l) {
        if (l < scan.count) parts.of[l] = index_parts::part_of(scan.lists[l]);
        parts.pieces += ceil_div(parts.of[l].units, kPiece);
        parts.of[l].end = parts.pieces;
    }
    return parts;
}

// An invalid item of a list; `list` is kMost if there is none.
struct BadItem {
    int list = IndexScan::kMost;
    int64_t item = 0;
};

// Returns the first invalid item among those of lane `lane` in warp `warp` of `warps`.
SMLA_HOST_DEVICE inline BadItem scan_lists(const ListParts& parts, const IndexScan& scan, int64_t warp,
                                           int64_t warps, int lane) {
    int l = 0;
    for (int64_t piece = warp; piece < parts.pieces; piece += warps) {
        while (piece >= parts.of[l].end) ++l;
        const ListPart& part = parts.of[l];
        const int64_t unit = (piece - (l > 0 ? parts.of[l - 1].end : 0)) * kPiece + lane;
        if (unit >= part.units) continue;
        const int64_t bad = index_parts::scan_unit(part, scan.lists[l], unit);
        if (bad >= 0) return {l, bad};
    }
    return {};
}

}  // namespace smla::cuda
