// For every stage: arguments of a call that the library accepts or refuses, with the memory that they speak
// of.
#pragma once

#include "world.h"

#include <smla/stages.h>

namespace smla::fuzz {

void make(World& world, smla_attend_args& args);
void make(World& world, smla_merge_args& args);
void make(World& world, smla_quant_index_q_args& args);
void make(World& world, smla_score_args& args);
void make(World& world, smla_select_args& args);
void make(World& world, smla_score_select_args& args);
void make(World& world, smla_score_select_blocks_args& args);
void make(World& world, smla_map_args& args);
void make(World& world, smla_write_args& args);  // of either write stage
void make(World& world, smla_save_state_args& args);
void make(World& world, smla_compress_args& args);
void make(World& world, smla_gather_args& args);
void make(World& world, smla_copy_pages_args& args);
void make(World& world, smla_norm_args& args);
void make(World& world, smla_rope_args& args);
void make(World& world, smla_project_args& args);

constexpr int64_t kTokens = 5;  // at most this many, and requests

// Rounding of an output's dtype, relative: two engines may round neighbours of a tie apart.
constexpr double rounding(smla_dtype dtype) {
    return dtype == SMLA_BF16 ? 0x1p-7 : dtype == SMLA_F16 ? 0x1p-10 : 0x1p-20;
}

}  // namespace smla::fuzz
