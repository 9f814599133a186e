// The fields of a plan, spelt once: memory, names, shapes and what padding tokens hold. See
// include/smla/plan.h.
#pragma once

#include "core/tensor.h"

#include <smla/plan.h>

#include <string_view>

namespace smla {

using PlanMaxima = smla_plan_args;
using PlanBatch = smla_plan_batch;
using PlanGroup = smla_plan_group;

// What a plan has beside its groups, in the same bits.
constexpr int32_t kPlanGroups = 63;
constexpr int32_t kPlanListsEntries = 64;
constexpr int32_t kPlanSchedules = 128;
int32_t plan_features(const PlanMaxima& maxima);
bool index_holds_entries(const PlanMaxima& maxima);  // else one key per token
int64_t entry_columns(const PlanMaxima& maxima);     // E

enum class FieldShape { tokens, tokens_window, tokens_entries, requests_plus_1, four, two };
constexpr bool per_token(FieldShape shape) { return shape <= FieldShape::tokens_entries; }

// X(name, dtype, shape, what padding holds, feature it needs)
#define SMLA_PLAN_FIELDS(X)                                          \
    X(request_of_token, SMLA_I32, tokens, 0, 0)                      \
    X(position, SMLA_I32, tokens, 0, 0)                              \
    X(rope_position, SMLA_I32, tokens, 0, 0)                         \
    X(is_valid, SMLA_U8, tokens, 0, 0)                               \
    X(visible_tokens, SMLA_I32, tokens, 0, 0)                        \
    X(batch_split, SMLA_I32, four, 0, 0)                             \
    X(primary_slot, SMLA_I64, tokens, -1, SMLA_PLAN_PRIMARY)         \
    X(window_slot, SMLA_I64, tokens, -1, SMLA_PLAN_WINDOW)           \
    X(window_rows, SMLA_I32, tokens_window, -1, SMLA_PLAN_WINDOW)    \
    X(window_len, SMLA_I32, tokens, 0, SMLA_PLAN_WINDOW)             \
    X(visible_entries, SMLA_I32, tokens, 0, SMLA_PLAN_COMPRESSED)    \
    X(compressed_slot, SMLA_I64, tokens, -1, SMLA_PLAN_COMPRESSED)   \
    X(entry_rows, SMLA_I32, tokens_entries, -1, kPlanListsEntries)   \
    X(entry_len, SMLA_I32, tokens, 0, kPlanListsEntries)             \
    X(state_slot, SMLA_I64, tokens, -1, SMLA_PLAN_STATE)             \
    X(index_slot, SMLA_I64, tokens, -1, SMLA_PLAN_INDEX)             \
    X(index_state_slot, SMLA_I64, tokens, -1, SMLA_PLAN_INDEX_STATE) \
    X(score_start, SMLA_I32, tokens, 0, SMLA_PLAN_INDEX)             \
    X(score_end, SMLA_I32, tokens, 0, SMLA_PLAN_INDEX)               \
    X(ragged_cu, SMLA_I32, requests_plus_1, 0, SMLA_PLAN_INDEX)      \
    X(ragged_start, SMLA_I32, tokens, 0, SMLA_PLAN_INDEX)            \
    X(ragged_end, SMLA_I32, tokens, 0, SMLA_PLAN_INDEX)              \
    X(schedule, SMLA_I32, two, 0, kPlanSchedules)

// Absent where the plan has no such feature.
struct PlanFields {
#define SMLA_PLAN_MEMBER(name, dtype, shape, padding, feature) Tensor name{};
    SMLA_PLAN_FIELDS(SMLA_PLAN_MEMBER)
#undef SMLA_PLAN_MEMBER
};

struct FieldSpec {
    const char* name;
    Tensor PlanFields::*member;
    smla_dtype dtype;
    FieldShape shape;
    int32_t padding, feature;
};
constexpr FieldSpec kPlanFieldSpecs[] = {
#define SMLA_PLAN_SPEC(name, dtype, shape, padding, feature) \
    {#name, &PlanFields::name, dtype, FieldShape::shape, padding, feature},
    SMLA_PLAN_FIELDS(SMLA_PLAN_SPEC)
#undef SMLA_PLAN_SPEC
};
constexpr int kPlanFieldCount = int(sizeof kPlanFieldSpecs / sizeof kPlanFieldSpecs[0]);

// The field at its largest, without memory; absent if the plan does not have it.
Tensor largest_field(const FieldSpec& spec, const PlanMaxima& maxima);
// Elements of tokens [begin, end), or the whole field if it has no token dimension, become padding.
void pad_field(const FieldSpec& spec, const Tensor& field, int64_t begin, int64_t end);

}  // namespace smla
