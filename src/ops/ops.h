// Defines the op of each stage. An op has Args, check (throws), tasks (number of independent units, usually
// tokens) and reference(args, begin, end): plain loops over a range of tasks, in double if the tensors are
// f64, else in float. A stage's folder defines the functions.
#pragma once

#include "core/stage.h"
#include "ops/field.h"

namespace smla {

#define SMLA_OP(name, arguments, task_count)                                   \
    struct name {                                                              \
        using Args = arguments;                                                \
        static void check(const Args& args, const CheckContext& context = {}); \
        static int64_t tasks(const Args& args) { return task_count; }          \
        static void reference(const Args& args, int64_t begin, int64_t end);   \
    };
SMLA_OP(NormOp, smla_norm_args, args.x.shape[0])
SMLA_OP(RopeOp, smla_rope_args, args.x.shape[0])
SMLA_OP(ProjectOp, smla_project_args, args.x.shape[0])
SMLA_OP(QuantIndexQOp, smla_quant_index_q_args, args.q.shape[0])
SMLA_OP(WriteKvOp, smla_write_args, args.slots.shape[0])         // tokens with a slot
SMLA_OP(WriteIndexOp, smla_write_args, args.slots.shape[0])      // tokens with a slot
SMLA_OP(SaveStateOp, smla_save_state_args, args.slots.shape[0])  // tokens with a slot
SMLA_OP(CompressOp, smla_compress_args, args.slots.shape[0])     // tokens with a slot
SMLA_OP(GatherOp, smla_gather_args, args.out.shape[0])  // rows, so that threads can share a long request
SMLA_OP(CopyPagesOp, smla_copy_pages_args, args.pairs.shape[0])  // pages
SMLA_OP(ScoreOp, smla_score_args, args.q.shape[0])
SMLA_OP(SelectOp, smla_select_args, args.scores.shape[0])
SMLA_OP(ScoreSelectOp, smla_score_select_args, args.score.q.shape[0])
SMLA_OP(ScoreSelectBlocksOp, smla_score_select_blocks_args, args.q.shape[0])
SMLA_OP(MapOp, smla_map_args, args.positions.shape[0])
SMLA_OP(AttendOp, smla_attend_args, args.q.shape[0])
SMLA_OP(MergeOp, smla_merge_args, args.partials.shape[1])
#undef SMLA_OP

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

// Returns body.operator()<S>() for a stage that is known only at run time.
template <class Body>
decltype(auto) with_stage(Stage stage, const Body& body) {
    switch (stage) {
#define SMLA_CASE(name, args) \
    case Stage::name: return body.template operator()<Stage::name>();
        SMLA_STAGES(SMLA_CASE)
#undef SMLA_CASE
    }
    fail(SMLA_INTERNAL, "stage", text(int(stage)), text("0 to ", kStageCount - 1));
}

// Returns the field table of a stage that is known only at run time.
std::span<const StageField> fields_of_stage(Stage stage);

}  // namespace smla
