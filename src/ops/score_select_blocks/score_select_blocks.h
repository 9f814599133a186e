// Checks and specification of score_select_blocks.
#pragma once

#include "ops/ops.h"
#include "ops/score/score.h"

namespace smla {

// Return the arguments of score, without logits and fill, and of select for the token's own list, without
// scores and windows.
smla_score_args score_args_of(const smla_score_select_blocks_args& args);
smla_select_args select_args_of(const smla_score_select_blocks_args& args);

// Returns the number of blocks in `columns` columns.
inline int64_t block_count(const smla_score_select_blocks_args& args) {
    return ceil_div(args.columns, args.block_size);
}
// Returns the number of blocks in a window, whose end may cut the last one.
inline int64_t blocks_in(ColumnWindow window, int64_t block_size) {
    return ceil_div(window.end - window.begin, block_size);
}
inline ColumnWindow columns_of_block(ColumnWindow window, int64_t block_size, int64_t block) {
    const int64_t begin = window.begin + block * block_size;
    return {begin, std::min(begin + block_size, window.end)};
}

// Writes the candidate blocks of a token with columns in its window, ascending and unique, to `out`, which
// has room for a row of args.blocks. Returns their number.
int64_t candidate_blocks(const smla_score_select_blocks_args& args, int64_t token, ColumnWindow window,
                         int32_t* out);

}  // namespace smla
