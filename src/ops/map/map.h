// Checks and specification of map.
#pragma once

#include "ops/map/row_of.h"
#include "ops/ops.h"

namespace smla {

Pool pool_of(const smla_map_args& args);

// Returns a checked [R,MB] i32 tensor as a BlockTable; page_rows 0 means page_tokens.
BlockTable block_table_of(const Tensor& table, int64_t page_tokens, int64_t page_rows);
// Returns the row of a request's token through its checked block table; -1 if the request, column or block
// does not exist.
int32_t map_position(const Tensor& block_table, int64_t request, int64_t position, int64_t page_tokens,
                     int64_t page_rows);

}  // namespace smla
