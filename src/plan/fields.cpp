#include "plan/fields.h"

#include "core/workspace.h"

namespace smla {

int32_t plan_features(const PlanMaxima& maxima) {
    int32_t features = maxima.groups;
    if (maxima.list_entries) features |= kPlanListsEntries;
    if (maxima.heads && maxima.workers) features |= kPlanSchedules;
    if (maxima.ratio) features |= kPlanCountsEntries;
    return features;
}

bool index_holds_entries(const PlanMaxima& maxima) { return maxima.ratio > 0; }

int64_t entry_columns(const PlanMaxima& maxima) {
    constexpr int64_t kColumns = 128;  // as in DeepSeek-V4's servers, so that kernels see whole tiles
    return maxima.ratio ? int64_t(round_up(size_t(ceil_div(maxima.max_seq_len, maxima.ratio)), kColumns)) : 0;
}

Tensor largest_field(const FieldSpec& spec, const PlanMaxima& maxima) {
    if (spec.feature && !(plan_features(maxima) & spec.feature)) return {};
    const auto shaped = [&](std::initializer_list<int64_t> shape) {
        return make_tensor(static_cast<void*>(nullptr), spec.dtype, shape);
    };
    const int64_t tokens = maxima.max_tokens;
    switch (spec.shape) {
        case FieldShape::tokens_window: return shaped({tokens, maxima.window});
        case FieldShape::tokens_entries: return shaped({tokens, entry_columns(maxima)});
        case FieldShape::requests_plus_1: return shaped({int64_t(maxima.max_requests) + 1});
        case FieldShape::four: return shaped({4});
        case FieldShape::two: return shaped({2});
        case FieldShape::tokens: break;
    }
    return shaped({tokens});
}

}  // namespace smla
