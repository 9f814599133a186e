// A position through a block table, as every host loop and kernel looks it up.
#pragma once

#include "core/host_device.h"

#include <cstdint>

namespace smla {

struct BlockTable {
    const int32_t* blocks = nullptr;
    int64_t requests = 0, columns = 0;
    int64_t request_stride = 0, column_stride = 1;  // elements
    int64_t page_tokens = 1, page_rows = 1;
};

// -1: no such request or column, no block, or a row past int32. The sign is tested first: -1 / n is 0 in C.
// Divides in the position's own type: on a GPU a division of 64 bits is a subroutine.
template <class Position>
SMLA_HOST_DEVICE inline int32_t row_of(const BlockTable& table, int64_t request, Position position) {
    if (position < 0 || request < 0 || request >= table.requests) return -1;
    const Position page_tokens = Position(table.page_tokens), column = position / page_tokens;
    if (column >= table.columns) return -1;
    const int64_t block =
        table.blocks[request * table.request_stride + int64_t(column) * table.column_stride];
    const int64_t row = block * table.page_rows + position % page_tokens;
    return block < 0 || row > INT32_MAX ? -1 : int32_t(row);
}

// The entry that a token closes, by tokens visible to it (itself included; 0: padding): -1 none.
SMLA_HOST_DEVICE inline int32_t closed_entry(int32_t visible_tokens, int32_t ratio) {
    return visible_tokens > 0 && visible_tokens % ratio == 0 ? visible_tokens / ratio - 1 : -1;
}

// Column j of a token's window, oldest first; -1 behind the last.
SMLA_HOST_DEVICE inline int32_t window_row(const BlockTable& table, int64_t request, int32_t visible_tokens,
                                           int32_t window, int32_t j) {
    const int32_t listed = visible_tokens < window ? visible_tokens : window;
    return j < listed ? row_of(table, request, visible_tokens - listed + j) : -1;
}

}  // namespace smla
