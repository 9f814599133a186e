// The batch plan: see include/smla/plan.h for what it takes and gives.
#pragma once

#include "core/device.h"
#include "plan/fields.h"
#include "plan/job.h"
#include "plan/split.h"

#include <array>
#include <bit>
#include <span>

namespace smla {

// What a checked batch resolves to.
struct BatchSize {
    int64_t requests = 0;
    int64_t query_tokens = 0;  // of all requests; 0 on a GPU, whose query_start_loc the host does not read
    int64_t tokens = 0;        // T, padding included
    int64_t longest = 0;       // tokens of the longest request; 0 on a GPU
};

// Returns the caller's integers per token in the form that a job reads; absent stays absent.
inline TokenNumbers numbers_of(const Tensor& tensor) {
    if (!present(tensor)) return {};
    return {tensor.data, tensor.shape[0], tensor.stride_elems[0], true, tensor.dtype == SMLA_I64};
}

void check_plan(const PlanMaxima& maxima);
// Throws unless the first `count` positions fit int32: a plan stores them so.
void check_positions(const char* field, const Tensor& positions, int64_t count);
// Throws before anything is written; allocates nothing unless it throws. `readable` false: the host does not
// read the numbers of the batch.
BatchSize check_batch(const PlanMaxima& maxima, const PlanBatch& batch, bool readable,
                      const CheckContext& context);

// The pages of a cache group, as its batch gave them; 0 before a build, and of groups that the plan lacks.
struct PlanPages {
    int32_t tokens = 0, rows = 0;
};
PlanPages pages_of(const PlanBatch& batch, int32_t group);  // of a SMLA_GROUP_* bit

// Where the fields of a plan lie, and what builds them there. Engines bring the kernels of a GPU
// (engines/plan.h).
struct PlanPlace {
    Device* device = &host_device();
    void (*build)(const PlanJob& job, Device& device,
                  smla_stream stream) = nullptr;  // null: the host's loops
};

// The given allocator, or malloc if it has no functions.
smla_allocator or_malloc(const smla_allocator& given);

class Plan {
public:
    explicit Plan(const PlanMaxima& maxima, const PlanPlace& place = {});
    ~Plan();
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    void build(const PlanBatch& batch);
    // A checked batch as plain pointers, for the rule of one token (job.h).
    PlanJob job(const PlanBatch& batch) const;

    const PlanMaxima& maxima() const { return maxima_; }
    // Shapes are those of the last build; addresses never change.
    const PlanFields& fields() const { return fields_; }
    const Tensor* find(std::string_view name) const;  // null: this plan has no such field
    std::span<const char* const> names() const { return {names_, size_t(name_count_)}; }

    const BatchSize& size() const { return size_; }
    // By which slots and rows of the last build were computed.
    PlanPages pages(int32_t group) const { return pages_[size_t(std::countr_zero(uint32_t(group)))]; }
    const BatchSplit& split() const { return split_; }  // of a plan on the host
    const SplitSchedule& schedule() const { return schedule_; }
    // [R+1], of the last build; where the plan lies.
    const int32_t* starts_in_step() const { return starts_; }
    int64_t threshold() const { return 1 + int64_t(maxima_.speculative_tokens); }

private:
    void allocate(size_t bytes);
    void release() noexcept;
    void carve();
    void resize();

    void build_here(const PlanJob& job);
    void place_tokens(const PlanJob& job);
    void add_up_keys(const PlanJob& job);
    void list_windows(const PlanJob& job, int64_t tokens);
    void list_entries(const PlanJob& job, int64_t tokens);

    PlanMaxima maxima_;
    PlanPlace place_;
    smla_allocator allocator_{};
    char* memory_ = nullptr;
    size_t bytes_ = 0;
    PlanFields fields_;
    const char* names_[kPlanFieldCount] = {};
    int name_count_ = 0;
    int32_t *listed_ = nullptr, *starts_ = nullptr, *reach_ = nullptr;  // of PlanJob
    int64_t used_ = 0;  // tokens that the last build on the host wrote
    BatchSize size_;
    std::array<PlanPages, std::bit_width(uint32_t(kPlanGroups))> pages_;
    BatchSplit split_;
    SplitSchedule schedule_;
};

}  // namespace smla
