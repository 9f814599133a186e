// Rows of a mixed batch, window columns first: see smla/rows.h.
#pragma once

#include "backends/maps/combined_rows.h"
#include "ops/map/map.h"

namespace smla {

constexpr int64_t kMixedColumns = 4;  // rows of i32 stay aligned to 16 bytes

// The width of a row with up to `columns` compressed columns.
inline int64_t mixed_width(int64_t window, int64_t columns) {
    return window + ceil_div(columns, kMixedColumns) * kMixedColumns;
}

// Compressed column c of a prefill token.
SMLA_HOST_DEVICE inline int32_t mixed_entry_row(const BlockTable& table, int64_t request,
                                                const PrefillColumns& columns, int32_t c, int32_t selected) {
    return c < columns.entries ? row_of(table, request, selected) : -1;
}

void mixed_rows(const smla_mixed_rows_args& args);

}  // namespace smla
