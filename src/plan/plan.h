// The batch plan: see include/smla/plan.h for what it takes and gives.
#pragma once

#include "plan/fields.h"
#include "plan/split.h"

#include <span>

namespace smla {

// What a checked batch resolves to.
struct BatchSize {
    int64_t requests = 0, query_tokens = 0;  // query tokens: those of requests
    int64_t tokens = 0;                      // T, padding included
    int64_t longest = 0;                     // tokens of the longest request
};

void check_plan(const PlanMaxima& maxima);
// Throws before anything is written; allocates nothing unless it throws.
BatchSize check_batch(const PlanMaxima& maxima, const PlanBatch& batch);

class Plan {
public:
    explicit Plan(const PlanMaxima& maxima);
    ~Plan();
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    void build(const PlanBatch& batch);

    const PlanMaxima& maxima() const { return maxima_; }
    const PlanFields& fields() const {
        return fields_;
    }                                                 // shapes are the last build's, addresses never change
    const Tensor* find(std::string_view name) const;  // null: this plan has no such field
    std::span<const char* const> names() const { return {names_, size_t(name_count_)}; }

    const BatchSize& size() const { return size_; }
    const BatchSplit& split() const { return split_; }
    const SplitSchedule& schedule() const { return schedule_; }
    int64_t threshold() const { return 1 + int64_t(maxima_.speculative_tokens); }

private:
    void carve(char* memory);
    void resize();
    void pad_tokens();

    void place_tokens(const PlanBatch& batch);
    void place_slots(const PlanBatch& batch, const PlanGroup& group, const Tensor& slots);
    void hide_invalid_tokens();
    void list_windows(const PlanBatch& batch);
    void count_entries();
    void place_entries(const PlanGroup& group, const Tensor& slots);
    void list_entries(const PlanBatch& batch);
    void score_windows(const PlanBatch& batch);

    PlanMaxima maxima_;
    smla_allocator allocator_{};
    void* memory_ = nullptr;
    PlanFields fields_;
    const char* names_[kPlanFieldCount] = {};
    int name_count_ = 0;
    int32_t* listed_ =
        nullptr;        // [T] entries that entry_rows holds of the last build, so that only those are reset
    int64_t used_ = 0;  // tokens that the last build wrote
    BatchSize size_;
    BatchSplit split_;
    SplitSchedule schedule_;
};

}  // namespace smla
