// map: what it means (reference.cpp) and what it accepts. See include/smla/stages_cache.h.
#pragma once

#include "ops/map/row_of.h"
#include "ops/ops.h"

namespace smla {

Pool pool_of(const smla_map_args& args);

// A checked [R,MB] i32 tensor as look-ups want it; page_rows 0: page_tokens.
BlockTable block_table_of(const Tensor& table, int64_t page_tokens, int64_t page_rows);
// The row of a request's token through its block table, which has been checked; -1: no such request, column
// or block.
int32_t map_position(const Tensor& block_table, int64_t request, int64_t position, int64_t page_tokens,
                     int64_t page_rows);

}  // namespace smla
