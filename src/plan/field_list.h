// The fields of a plan, listed once. See include/smla/plan.h.
#pragma once

#include <smla/plan.h>

namespace smla {

// X(name, dtype, shape, value of padding, required feature)
#define SMLA_PLAN_FIELDS(X)                                           \
    X(request_of_token, SMLA_I32, tokens, 0, 0)                       \
    X(position, SMLA_I32, tokens, 0, 0)                               \
    X(rope_position, SMLA_I32, tokens, 0, 0)                          \
    X(is_valid, SMLA_U8, tokens, 0, 0)                                \
    X(visible_tokens, SMLA_I32, tokens, 0, 0)                         \
    X(batch_split, SMLA_I32, four, 0, 0)                              \
    X(primary_slot, SMLA_I64, tokens, -1, SMLA_GROUP_PRIMARY)         \
    X(window_slot, SMLA_I64, tokens, -1, SMLA_GROUP_WINDOW)           \
    X(window_rows, SMLA_I32, tokens_window, -1, SMLA_GROUP_WINDOW)    \
    X(window_len, SMLA_I32, tokens, 0, SMLA_GROUP_WINDOW)             \
    X(visible_entries, SMLA_I32, tokens, 0, kPlanCountsEntries)       \
    X(compressed_slot, SMLA_I64, tokens, -1, SMLA_GROUP_COMPRESSED)   \
    X(entry_rows, SMLA_I32, tokens_entries, -1, kPlanListsEntries)    \
    X(entry_len, SMLA_I32, tokens, 0, kPlanListsEntries)              \
    X(state_slot, SMLA_I64, tokens, -1, SMLA_GROUP_STATE)             \
    X(index_slot, SMLA_I64, tokens, -1, SMLA_GROUP_INDEX)             \
    X(index_state_slot, SMLA_I64, tokens, -1, SMLA_GROUP_INDEX_STATE) \
    X(score_start, SMLA_I32, tokens, 0, SMLA_GROUP_INDEX)             \
    X(score_end, SMLA_I32, tokens, 0, SMLA_GROUP_INDEX)               \
    X(ragged_cu, SMLA_I32, requests_plus_1, 0, SMLA_GROUP_INDEX)      \
    X(ragged_start, SMLA_I32, tokens, 0, SMLA_GROUP_INDEX)            \
    X(ragged_end, SMLA_I32, tokens, 0, SMLA_GROUP_INDEX)              \
    X(schedule, SMLA_I32, two, 0, kPlanSchedules)

// Fields of features that the plan lacks are absent.
struct PlanFields {
#define SMLA_PLAN_MEMBER(name, dtype, shape, padding, feature) smla_tensor name{};
    SMLA_PLAN_FIELDS(SMLA_PLAN_MEMBER)
#undef SMLA_PLAN_MEMBER
};

}  // namespace smla
