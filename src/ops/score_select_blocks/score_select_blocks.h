// score_select_blocks: what it means (reference.cpp) and what it accepts. See include/smla/stages_index.h.
#pragma once

#include "ops/ops.h"
#include "ops/score/score.h"

namespace smla {

// The stages that this one is made of. score: without logits and fill. select: the token's own list, without
// scores and windows.
smla_score_args score_args_of(const smla_score_select_blocks_args& args);
smla_select_args select_args_of(const smla_score_select_blocks_args& args);

// Blocks that `columns` columns have.
inline int64_t block_count(const smla_score_select_blocks_args& args) {
    return ceil_div(args.columns, args.block_size);
}
// Blocks of a window. The last one may be cut by the window's end.
inline int64_t blocks_in(ColumnWindow window, int64_t block_size) {
    return ceil_div(window.end - window.begin, block_size);
}
inline ColumnWindow columns_of_block(ColumnWindow window, int64_t block_size, int64_t block) {
    const int64_t begin = window.begin + block * block_size;
    return {begin, std::min(begin + block_size, window.end)};
}

// The candidate blocks of a token that have columns in its window, ascending, each once: into `out`, which
// has room for a row of args.blocks. Returns how many.
int64_t candidate_blocks(const smla_score_select_blocks_args& args, int64_t token, ColumnWindow window,
                         int32_t* out);

}  // namespace smla
