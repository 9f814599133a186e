// Positions of a request to rows, in all the ways that attention backends want: see smla/rows.h.
#pragma once

#include "ops/map/map.h"

#include <smla/rows.h>

namespace smla {

// Context parallelism deals `interleave` consecutive positions to each rank in turn.
struct RankShare {
    int32_t ranks = 1, rank = 0, interleave = 1;
};
SMLA_HOST_DEVICE inline bool owns(const RankShare& share, int32_t position) {
    return position >= 0 && position / share.interleave % share.ranks == share.rank;
}
// The number that a rank has for a position that it owns.
SMLA_HOST_DEVICE inline int32_t local_position(const RankShare& share, int32_t position) {
    const int64_t round = int64_t(share.ranks) * share.interleave;
    return int32_t(position / round * share.interleave + position % share.interleave);
}

// workspace_start < 0: a row of the cache. A position past the table is a hole either way.
SMLA_HOST_DEVICE inline int32_t request_row(const BlockTable& table, const RankShare& share, int64_t request,
                                            int32_t position, int64_t workspace_start) {
    if (!owns(share, position)) return -1;
    const int32_t local = local_position(share, position);
    if (workspace_start < 0) return row_of(table, request, local);
    const int64_t row = workspace_start + local;
    return local / table.page_tokens >= table.columns || row > INT32_MAX ? -1 : int32_t(row);
}

void request_rows(const smla_request_rows_args& args);

}  // namespace smla
