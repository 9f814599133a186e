// How a kernel scans the lists of a call (ops/index_scan.h): each list has blocks of its own, and a filter of
// a few instructions that recognises most good values. Only values that it doubts are examined by the rules,
// whose code is long and rarely loaded. The filter may doubt a good value; it passes no bad one.
#pragma once

#include "core/workspace.h"
#include "ops/index_scan.h"

#include <algorithm>

namespace smla {

namespace cuda {

enum class ListFilter : int32_t {
    none,    // every item goes through its rule
    values,  // of one dimension
    vectors  // of two dimensions, 16 bytes at a time
};

constexpr int kVector = 4;  // items, of 4 bytes
struct alignas(16) IndexVector {
    int32_t values[kVector];
};

struct ListPart {
    unsigned begin = 0, end = 0;  // blocks
    ListFilter filter = ListFilter::none;
    uint32_t line_vectors = 0;  // of a token
    int64_t units = 0;          // vectors or items
    const int32_t* lines = nullptr;
    int64_t line_stride = 0;
    int64_t low = 0, high = 0;                // good values ...
    uint32_t page_rows = 0, page_tokens = 0;  // ... but for those between the tokens of two pages; 0: no gaps
};

struct ListParts {
    ListPart of[IndexScan::kMost];
    unsigned blocks = 0;
};

namespace index_parts {

// False: the filter's 32-bit arithmetic cannot check these rows.
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
           reinterpret_cast<uintptr_t>(values.data) % sizeof(IndexVector) == 0 &&
           list.tokens * list.per_token / kVector <= UINT32_MAX;
}

inline ListPart part_of(const IndexList& list) {
    ListPart part;
    part.units = list.tokens * list.per_token;
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
            part.filter = ListFilter::vectors;
            part.line_vectors = uint32_t(list.per_token / kVector);
            part.lines = static_cast<const int32_t*>(list.values.data);
            part.line_stride = list.values.stride_elems[0];
            part.units /= kVector;
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

// The first bad one of `count` items from `item` on; -1: none. Out of line, so that neither its instructions
// nor its parameters are loaded for lists that the filter passes.
[[gnu::noinline]] SMLA_HOST_DEVICE inline int64_t first_bad(const IndexList& list, int64_t item, int count) {
    for (const int64_t end = item + count; item < end; ++item)
        if (examine(list, item).kind != SMLA_BAD_NONE) return item;
    return -1;
}

SMLA_HOST_DEVICE inline int64_t scan_vectors(const ListPart& part, const IndexList& list, int64_t first,
                                             int64_t step) {
    for (int64_t unit = first; unit < part.units; unit += step) {
        const uint32_t token = uint32_t(unit) / part.line_vectors;
        const uint32_t column = kVector * (uint32_t(unit) - token * part.line_vectors);
        const int32_t* const values = part.lines + int64_t(token) * part.line_stride + column;
        if (!doubts(part, *reinterpret_cast<const IndexVector*>(values))) continue;
        const int64_t bad = first_bad(list, unit * kVector, kVector);
        if (bad >= 0) return bad;
    }
    return -1;
}

SMLA_HOST_DEVICE inline int64_t scan_values(const ListPart& part, const IndexList& list, int64_t first,
                                            int64_t step) {
    for (int64_t item = first; item < part.units; item += step) {
        if (!doubts(part, load_int(list.values, item))) continue;
        const int64_t bad = first_bad(list, item, 1);
        if (bad >= 0) return bad;
    }
    return -1;
}

}  // namespace index_parts

// A list takes at most `most` blocks of so many threads; grids depend on shapes alone.
inline ListParts parts_of(const IndexScan& scan, int threads, int64_t most) {
    ListParts parts;
    for (int l = 0; l < IndexScan::kMost; ++l) {
        if (l < scan.count) parts.of[l] = index_parts::part_of(scan.lists[l]);
        ListPart& part = parts.of[l];
        part.begin = parts.blocks;
        parts.blocks += unsigned(std::min(ceil_div(part.units, threads), most));
        part.end = parts.blocks;
    }
    return parts;
}

// The first bad item of units first, first + step, ...; -1: none.
SMLA_HOST_DEVICE inline int64_t scan_part(const ListPart& part, const IndexList& list, int64_t first,
                                          int64_t step) {
    if (part.filter == ListFilter::vectors) return index_parts::scan_vectors(part, list, first, step);
    if (part.filter == ListFilter::values) return index_parts::scan_values(part, list, first, step);
    for (int64_t item = first; item < part.units; item += step)
        if (examine(list, item).kind != SMLA_BAD_NONE) return item;
    return -1;
}

}  // namespace cuda

}  // namespace smla
