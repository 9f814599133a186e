// Metadata on a GPU. For a batch on the host, the host computes them as without a GPU; each build sends what
// changed in one kernel, and the plan's fields are built on the GPU from what was sent. A batch on the GPU is
// not read by the host: build_plan() builds the plan there.
#pragma once

#include "backends/config.h"
#include "backends/metadata/field.h"
#include "engines/context.h"
#include "engines/staging_buffer.h"
#include "plan/plan.h"

#include <vector>

namespace smla {

class GpuMetadata {
public:
    // `plan`: the host's. `fields`: the fields' memory on the host, [bytes] u8.
    GpuMetadata(Context& context, const BackendArgs& args, const Plan& plan, const Tensor& fields);

    // The device side of a field at `offset` in the fields' memory.
    Tensor side_of(const Tensor& host, size_t offset) const;

    // Throws, before anything is written, if a batch has no room on the GPU or its stream is capturing.
    void check(const PlanBatch& batch) const;
    // Builds the plan of a batch that lies on the GPU.
    void build_plan(const PlanBatch& batch) { there_.build(batch); }
    const Plan& plan_there() const { return there_; }
    // Tables are those of this batch from now on; finish() sends them.
    void take_tables(const PlanBatch& batch);
    // Between begin() and finish() the owner hands over its fields, as many bytes as may have changed.
    void begin();
    void put(const Field& field, size_t bytes);
    void finish(const PlanBatch& batch, const Field& starts, const Field& lengths);

    Tensor plan_field(Tensor PlanFields::*member) const;
    // A block table of the last batch, [R,columns]; absent if the batch had none.
    Tensor table(int32_t group) const;
    // The same with every row that a later batch may have: captured graphs read it.
    Tensor kernel_table(int32_t group) const;
    Device& device() const { return device_; }

private:
    // A block table of the batch in memory of its own, [max_requests,columns].
    struct Table {
        int32_t group;
        PlanGroup PlanBatch::*member;
        const char* page_tokens_field;
        int64_t usual_page, tokens;  // of a page, of the longest request
        int64_t columns = 0;         // of the last batch's pages
        Tensor host{};               // of the last batch
        DeviceBuffer memory;
    };
    void add_table(int32_t group, PlanGroup PlanBatch::*member, const char* field, int64_t usual_page,
                   int64_t tokens);
    void put_table(const Table& table);
    void put_numbers(const Tensor& from, const DeviceBuffer& to);
    PlanGroup plan_group(int32_t bit, const PlanGroup& host, const Tensor* slots) const;
    Tensor placed(Tensor host, void* data) const;
    char* stage(void* to, size_t bytes);

    Device& device_;
    const Plan& plan_;  // the host's
    Plan there_;
    DeviceBuffer fields_;
    std::vector<Table> tables_;
    DeviceBuffer rope_, slots_[kTokenGroups];  // what the plan there is built from
    std::unique_ptr<StagingBuffer> staging_buffer_;
    std::vector<StagedCopy> copies_;
    char* staging_ = nullptr;
    size_t staged_ = 0;
};

}  // namespace smla
