// The stages of the pipeline. Log names, bench names, test folders and the support matrix use this list.
#pragma once

#include <smla/stages_attend.h>
#include <smla/stages_cache.h>
#include <smla/stages_index.h>
#include <smla/stages_linear.h>

#include <string_view>

// X(name, arguments)
#define SMLA_STAGES(X)                        \
    X(norm, smla_norm_args)                   \
    X(rope, smla_rope_args)                   \
    X(project, smla_project_args)             \
    X(absorb, smla_project_args)              \
    X(quant_index_q, smla_quant_index_q_args) \
    X(write_kv, smla_write_args)              \
    X(write_index, smla_write_args)           \
    X(save_state, smla_save_state_args)       \
    X(compress, smla_compress_args)           \
    X(gather, smla_gather_args)               \
    X(copy_pages, smla_copy_pages_args)       \
    X(score, smla_score_args)                 \
    X(select, smla_select_args)               \
    X(score_select, smla_score_select_args)   \
    X(map, smla_map_args)                     \
    X(attend, smla_attend_args)               \
    X(merge, smla_merge_args)                 \
    X(inverse_rope, smla_rope_args)           \
    X(up_project, smla_project_args)          \
    X(out_project, smla_project_args)         \
    X(score_select_blocks, smla_score_select_blocks_args)

namespace smla {

enum class Stage {
#define SMLA_STAGE_ENUM(name, args) name,
    SMLA_STAGES(SMLA_STAGE_ENUM)
#undef SMLA_STAGE_ENUM
};

constexpr std::string_view kStageNames[] = {
#define SMLA_STAGE_NAME(name, args) #name,
    SMLA_STAGES(SMLA_STAGE_NAME)
#undef SMLA_STAGE_NAME
};
constexpr int kStageCount = int(sizeof kStageNames / sizeof kStageNames[0]);

constexpr std::string_view stage_name(Stage stage) { return kStageNames[int(stage)]; }

}  // namespace smla
