// The batch plan; include/smla/plan.h describes its input and fields.
#pragma once

#include "core/device.h"
#include "plan/fields.h"
#include "plan/job.h"
#include "plan/split.h"

#include <array>
#include <bit>
#include <span>

namespace smla {

// Sizes of a checked batch.
struct BatchSize {
    int64_t requests = 0;
    int64_t query_tokens = 0;  // total; 0 on a GPU, where the host does not read query_start_loc
    int64_t tokens = 0;        // T, padding included
    int64_t longest = 0;       // tokens of the longest request; 0 on a GPU
};

// Returns the caller's integers per token in the form for a job; an absent tensor stays absent.
inline TokenNumbers numbers_of(const Tensor& tensor) {
    if (!present(tensor)) return {};
    return {tensor.data, tensor.shape[0], tensor.stride_elems[0], true, tensor.dtype == SMLA_I64};
}

void check_plan(const PlanMaxima& maxima);
// Throws unless the first `count` positions fit int32, in which a plan stores them.
void check_positions(const char* field, const Tensor& positions, int64_t count);
// Throws before anything is written, and allocates only to throw. `readable`: whether the host reads the
// numbers of the batch.
BatchSize check_batch(const PlanMaxima& maxima, const PlanBatch& batch, bool readable,
                      const CheckContext& context);

// Page sizes of a cache group in its batch; 0 before a build, and for groups that the plan lacks.
struct PlanPages {
    int32_t tokens = 0, rows = 0;
};
PlanPages pages_of(const PlanBatch& batch, int32_t group);  // of a SMLA_GROUP_* bit

// Memory of a plan's fields, and the function that builds them there. Engines provide kernels for a GPU
// (engines/plan.h).
struct PlanPlace {
    Device* device = &host_device();
    void (*build)(const PlanJob& job, Device& device,
                  smla_stream stream) = nullptr;  // null: the host's loops
};

// Returns `given`, or malloc if it has no functions.
smla_allocator or_malloc(const smla_allocator& given);

class Plan {
public:
    explicit Plan(const PlanMaxima& maxima, const PlanPlace& place = {});
    ~Plan();
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    void build(const PlanBatch& batch);
    // Returns a checked batch as plain pointers for the rule of one token (job.h).
    PlanJob job(const PlanBatch& batch) const;

    const PlanMaxima& maxima() const { return maxima_; }
    // Fields have the shapes of the last build; addresses never change.
    const PlanFields& fields() const { return fields_; }
    const Tensor* find(std::string_view name) const;  // null if the plan has no such field
    std::span<const char* const> names() const { return {names_, size_t(name_count_)}; }

    const BatchSize& size() const { return size_; }
    // Returns the page sizes that the last build's slots and rows depend on.
    PlanPages pages(int32_t group) const { return pages_[size_t(std::countr_zero(uint32_t(group)))]; }
    const BatchSplit& split() const { return split_; }  // only for plans on the host
    const SplitSchedule& schedule() const { return schedule_; }
    // Returns [R+1] starts of the last build, in the plan's memory.
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
    int64_t used_ = 0;  // tokens that the last host build wrote
    BatchSize size_;
    std::array<PlanPages, std::bit_width(uint32_t(kPlanGroups))> pages_;
    BatchSplit split_;
    SplitSchedule schedule_;
};

}  // namespace smla
