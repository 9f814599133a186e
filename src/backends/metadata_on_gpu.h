// Metadata on a GPU: the host computes them from the batch, as on a CPU, and each build sends what changed in
// one kernel; the plan's fields are built there from what was sent.
#pragma once

#include "backends/backend.h"
#include "engines/outbox.h"
#include "plan/plan.h"

#include <vector>

namespace smla {

class GpuMetadata {
public:
    // `plan`: the host's. `fields`: its owner's fields, [bytes] u8 of the host.
    GpuMetadata(Context& context, const BackendArgs& args, const Plan& plan, const Tensor& fields);

    // Throws, before anything is written, where a batch has no room on the GPU or the stream is capturing.
    void check(const PlanBatch& batch) const;
    // Between begin() and finish() the owner hands over its fields: as far as they may have changed.
    void begin();
    void put(const Tensor& field, size_t bytes);
    void finish(const PlanBatch& batch, const Tensor& starts, const Tensor& lengths);

    // Where a host's tensor lies on the GPU: a view of the fields, of the plan's, or of the batch's tables.
    Tensor view(const Tensor& host) const;
    // The same for kernels of captured graphs: tables with all rows and columns that a later batch may have.
    Tensor kernel_view(const Tensor& host) const;
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
    void put_table(Table& table, const PlanGroup& group);
    void put_numbers(const Tensor& from, const DeviceBuffer& to);
    PlanGroup plan_group(int32_t bit, const PlanGroup& host, const Tensor* slots) const;
    const Table* table_of(const Tensor& host) const;
    char* stage(void* to, size_t bytes);

    Device& device_;
    const Plan& plan_;  // the host's
    Plan there_;
    Tensor fields_;  // the owner's, on the host
    DeviceBuffer fields_there_;
    std::vector<Table> tables_;
    DeviceBuffer rope_, slots_[kTokenGroups];  // what the plan there is built from
    std::unique_ptr<Outbox> outbox_;
    std::vector<Parcel> parcels_;
    char* staging_ = nullptr;
    size_t staged_ = 0;
};

}  // namespace smla
