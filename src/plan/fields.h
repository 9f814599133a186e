// Properties of each field of a plan: memory, name, shape and values of padding tokens.
#pragma once

#include "core/tensor.h"
#include "plan/field_list.h"

#include <smla/plan.h>

#include <string_view>

namespace smla {

using PlanMaxima = smla_plan_args;
using PlanBatch = smla_plan_batch;
using PlanGroup = smla_plan_group;

// Features of a plan as bits: its groups, and more features above the group bits.
constexpr int32_t kPlanGroups = 63;
constexpr int32_t kPlanListsEntries = 64;
constexpr int32_t kPlanSchedules = 128;
constexpr int32_t kPlanCountsEntries = 256;  // of keys, or only of index keys (GLM-5.3)
int32_t plan_features(const PlanMaxima& maxima);
bool index_holds_entries(const PlanMaxima& maxima);  // false: one key per token
int64_t entry_columns(const PlanMaxima& maxima);     // E

enum class FieldShape { tokens, tokens_window, tokens_entries, requests_plus_1, four, two };
constexpr bool per_token(FieldShape shape) { return shape <= FieldShape::tokens_entries; }

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
// Filling with one byte makes padding on any device.
constexpr bool padding_is_0_or_all_ones() {
    for (const FieldSpec& spec : kPlanFieldSpecs)
        if (spec.padding != 0 && spec.padding != -1) return false;
    return true;
}
static_assert(padding_is_0_or_all_ones());
constexpr int kPlanFieldCount = int(sizeof kPlanFieldSpecs / sizeof kPlanFieldSpecs[0]);

// Returns the field's largest shape, without memory; absent if the plan does not have it.
Tensor largest_field(const FieldSpec& spec, const PlanMaxima& maxima);

}  // namespace smla
