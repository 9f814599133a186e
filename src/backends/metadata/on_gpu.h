// Metadata on a GPU. For a batch on the host, the host computes them as without a GPU; each build sends what
// changed in one kernel, and the plan's fields are built on the GPU from what was sent. A batch on the GPU is
// not read by the host: build_plan() builds the plan there.
#pragma once

#include "backends/config.h"
#include "backends/metadata/field.h"
#include "backends/metadata/tables.h"
#include "engines/context.h"
#include "engines/staging_buffer.h"
#include "plan/plan.h"

#include <vector>

namespace smla {

class GpuMetadata {
public:
    // `plan`: the plan on the host. `fields`: memory of the fields on the host, [bytes] u8. Places `tables`.
    GpuMetadata(Context& context, const Plan& plan, const Tensor& fields, BatchTables& tables);

    // The device side of a field at `offset` in the fields' memory.
    Tensor side_of(const Tensor& host, size_t offset) const;

    // Throws if the stream of a batch is being captured.
    void check(const PlanBatch& batch) const {
        staging_buffer_->refuse_capture("batch.stream", batch.stream);
    }
    // Builds the plan of a batch that lies on the GPU.
    void build_plan(const PlanBatch& batch) { there_.build(batch); }
    const Plan& plan_there() const { return there_; }
    // Between begin() and finish() the owner hands over its fields, as many bytes as may have changed.
    void begin();
    void put(const Field& field, size_t bytes);
    void finish(const PlanBatch& batch, const Field& starts, const Field& lengths);

    Tensor plan_field(Tensor PlanFields::*member) const;
    Device& device() const { return device_; }

private:
    void put_numbers(const Tensor& from, const DeviceBuffer& to);
    PlanGroup plan_group(PlanGroup PlanBatch::*member, const PlanBatch& host, const Tensor& slots = {}) const;
    char* stage(void* to, size_t bytes);

    Device& device_;
    const Plan& plan_;  // the host's
    Plan there_;
    DeviceBuffer fields_;
    BatchTables& tables_;
    DeviceBuffer table_memory_, rope_, slots_[kTokenGroups];  // inputs of the plan on the GPU
    std::unique_ptr<StagingBuffer> staging_buffer_;
    std::vector<StagedCopy> copies_;
    char* staging_ = nullptr;
    size_t staged_ = 0;
};

}  // namespace smla
