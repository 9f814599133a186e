// smla/hpp/stages.hpp: argument types of the stages.
#ifndef SMLA_HPP_STAGES_HPP
#define SMLA_HPP_STAGES_HPP

#include <smla/stages.h>
#include <smla/hpp/error.hpp>

// List of all stage calls of smla/stages.h, as X(name, stage, arguments).
#define SMLA_HPP_STAGES(X)                                              \
    X(norm, SMLA_STAGE_NORM, smla_norm_args)                            \
    X(rope, SMLA_STAGE_ROPE, smla_rope_args)                            \
    X(project, SMLA_STAGE_PROJECT, smla_project_args)                   \
    X(absorb, SMLA_STAGE_ABSORB, smla_project_args)                     \
    X(quant_index_q, SMLA_STAGE_QUANT_INDEX_Q, smla_quant_index_q_args) \
    X(write_kv, SMLA_STAGE_WRITE_KV, smla_write_args)                   \
    X(write_index, SMLA_STAGE_WRITE_INDEX, smla_write_args)             \
    X(save_state, SMLA_STAGE_SAVE_STATE, smla_save_state_args)          \
    X(compress, SMLA_STAGE_COMPRESS, smla_compress_args)                \
    X(gather, SMLA_STAGE_GATHER, smla_gather_args)                      \
    X(copy_pages, SMLA_STAGE_COPY_PAGES, smla_copy_pages_args)          \
    X(score, SMLA_STAGE_SCORE, smla_score_args)                         \
    X(select, SMLA_STAGE_SELECT, smla_select_args)                      \
    X(score_select, SMLA_STAGE_SCORE_SELECT, smla_score_select_args)    \
    X(map, SMLA_STAGE_MAP, smla_map_args)                               \
    X(attend, SMLA_STAGE_ATTEND, smla_attend_args)                      \
    X(merge, SMLA_STAGE_MERGE, smla_merge_args)                         \
    X(inverse_rope, SMLA_STAGE_INVERSE_ROPE, smla_rope_args)            \
    X(up_project, SMLA_STAGE_UP_PROJECT, smla_project_args)             \
    X(out_project, SMLA_STAGE_OUT_PROJECT, smla_project_args)           \
    X(score_select_blocks, SMLA_STAGE_SCORE_SELECT_BLOCKS, smla_score_select_blocks_args)

namespace smla {
inline namespace v0 {

namespace detail {
template <smla_stage S>
struct ArgsOf;
#define SMLA_HPP_ARGS(name, stage, args_type) \
    template <>                               \
    struct ArgsOf<stage> {                    \
        using type = args_type;               \
    };
SMLA_HPP_STAGES(SMLA_HPP_ARGS)
#undef SMLA_HPP_ARGS

inline smla_score_select_args sized(smla_score_select_args args) {
    if (args.struct_size == 0) args.struct_size = sizeof args;
    args.score = sized(args.score);
    args.select = sized(args.select);
    return args;
}
}  // namespace detail

// The argument struct of a stage: StageArgs<SMLA_STAGE_ATTEND> is smla_attend_args.
template <smla_stage S>
using StageArgs = typename detail::ArgsOf<S>::type;

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_STAGES_HPP
