// Look-up of a position in a block table, for all host loops and kernels.
#pragma once

#include "core/host_device.h"

#include <cstdint>

namespace smla {

struct BlockTable {
    const int32_t* blocks = nullptr;
    int64_t requests = 0, columns = 0;
    int64_t request_stride = 0, column_stride = 1;  // elements
    int64_t page_tokens = 1, page_rows = 1;

    SMLA_HOST_DEVICE bool has(int64_t request) const { return request >= 0 && request < requests; }
};

// Returns the offset of a position's block in the table; -1 if the request or column does not exist. Tests
// the sign first, because -1 / n is 0 in C. Divides in the position's own type, because a GPU calls a
// subroutine to divide 64 bits.
template <class Position>
SMLA_HOST_DEVICE inline int64_t entry_of(const BlockTable& table, int64_t request, Position position) {
    if (position < 0 || !table.has(request)) return -1;
    const Position column = position / Position(table.page_tokens);
    if (column >= table.columns) return -1;
    return request * table.request_stride + int64_t(column) * table.column_stride;
}
// Returns the row of a position; -1 without a block, or past int32.
template <class Position>
SMLA_HOST_DEVICE inline int32_t row_in(const BlockTable& table, int64_t block, Position position) {
    const int64_t row = block * table.page_rows + position % Position(table.page_tokens);
    return block < 0 || row > INT32_MAX ? -1 : int32_t(row);
}
template <class Position>
SMLA_HOST_DEVICE inline int32_t row_of(const BlockTable& table, int64_t request, Position position) {
    const int64_t entry = entry_of(table, request, position);
    return entry < 0 ? -1 : row_in(table, table.blocks[entry], position);
}

// A listed position represents a pool of `tokens` neighboring tokens. With `tail`, the list ends with the
// visible tokens after the last whole pool.
struct Pool {
    int32_t tokens = 1;
    bool tail = false;

    SMLA_HOST_DEVICE int64_t columns(int64_t listed) const {
        return listed * tokens + (tail ? tokens - 1 : 0);
    }
    // Returns column j of the tokens of a listed pool; -1 if masked.
    SMLA_HOST_DEVICE int64_t token(int32_t listed, int64_t j) const {
        return listed < 0 ? -1 : int64_t(listed) * tokens + j % tokens;
    }
    // Returns token i after the last whole pool; -1 if the query token sees fewer.
    SMLA_HOST_DEVICE int64_t tail_token(int32_t visible_tokens, int64_t i) const {
        return visible_tokens > 0 && i < visible_tokens % tokens
                   ? visible_tokens - visible_tokens % tokens + i
                   : -1;
    }
};

// Returns the entry that a token closes; -1: none. `visible_tokens` counts the tokens that it sees, including
// itself; 0 means padding.
SMLA_HOST_DEVICE inline int32_t closed_entry(int32_t visible_tokens, int32_t ratio) {
    return visible_tokens > 0 && visible_tokens % ratio == 0 ? visible_tokens / ratio - 1 : -1;
}

// Returns column j of a token's window, oldest first; -1 after the last.
SMLA_HOST_DEVICE inline int32_t window_row(const BlockTable& table, int64_t request, int32_t visible_tokens,
                                           int32_t window, int32_t j) {
    const int32_t listed = visible_tokens < window ? visible_tokens : window;
    return j < listed ? row_of(table, request, visible_tokens - listed + j) : -1;
}

}  // namespace smla
