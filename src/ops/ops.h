// Which op gives each stage its meaning. An op has Args, check (throws), tasks (independent units, usually
// tokens) and reference(args, begin, end): plain loops over a range of tasks, in double if the tensors are
// f64, else in float.
#pragma once

#include "core/stage.h"
#include "ops/attend/attend.h"
#include "ops/compress/compress.h"
#include "ops/copy_pages/copy_pages.h"
#include "ops/gather/gather.h"
#include "ops/map/map.h"
#include "ops/merge/merge.h"
#include "ops/norm/norm.h"
#include "ops/project/project.h"
#include "ops/quant_index_q/quant_index_q.h"
#include "ops/rope/rope.h"
#include "ops/save_state/save_state.h"
#include "ops/score/score.h"
#include "ops/score_select/score_select.h"
#include "ops/score_select_blocks/score_select_blocks.h"
#include "ops/select/select.h"
#include "ops/write/write.h"

namespace smla {

template <Stage S>
struct OpOfStage;
template <Stage S>
using OpOf = typename OpOfStage<S>::type;

#define SMLA_OP(stage, op)           \
    template <>                      \
    struct OpOfStage<Stage::stage> { \
        using type = op;             \
    };
SMLA_OP(norm, NormOp)
SMLA_OP(rope, RopeOp)
SMLA_OP(project, ProjectOp)
SMLA_OP(absorb, ProjectOp)
SMLA_OP(quant_index_q, QuantIndexQOp)
SMLA_OP(write_kv, WriteKvOp)
SMLA_OP(write_index, WriteIndexOp)
SMLA_OP(save_state, SaveStateOp)
SMLA_OP(compress, CompressOp)
SMLA_OP(gather, GatherOp)
SMLA_OP(copy_pages, CopyPagesOp)
SMLA_OP(score, ScoreOp)
SMLA_OP(select, SelectOp)
SMLA_OP(score_select, ScoreSelectOp)
SMLA_OP(score_select_blocks, ScoreSelectBlocksOp)
SMLA_OP(map, MapOp)
SMLA_OP(attend, AttendOp)
SMLA_OP(merge, MergeOp)
SMLA_OP(inverse_rope, RopeOp)
SMLA_OP(up_project, ProjectOp)
SMLA_OP(out_project, ProjectOp)
#undef SMLA_OP

// The field table of a stage that is known only at run time.
inline std::span<const StageField> fields_of_stage(Stage stage) {
    switch (stage) {
#define SMLA_FIELDS(name, args) \
    case Stage::name: return fields_of<args>();
        SMLA_STAGES(SMLA_FIELDS)
#undef SMLA_FIELDS
    }
    return {};
}

}  // namespace smla
