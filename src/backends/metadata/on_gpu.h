// Metadata on a GPU. The host computes the metadata of a host batch; each build sends the changes in one
// kernel, and the GPU builds the plan's fields from them. The host does not read a GPU batch: build_plan()
// builds its plan on the GPU.
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
    // `plan` is the host's plan, `fields` the host memory of the fields, [bytes] u8. Places `tables`.
    GpuMetadata(Context& context, const Plan& plan, const Tensor& fields, BatchTables& tables);

    // Returns the device side of a field at `offset` in the fields' memory.
    Tensor side_of(const Tensor& host, size_t offset) const;

    // Throws if the stream of a batch is being captured.
    void check(const PlanBatch& batch) const {
        staging_buffer_->refuse_capture("batch.stream", batch.stream);
    }
    // Builds the plan of a GPU batch.
    void build_plan(const PlanBatch& batch) { there_.build(batch); }
    const Plan& plan_there() const { return there_; }
    // Between begin() and finish(), the owner calls put() for the bytes of each field that may have changed.
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
