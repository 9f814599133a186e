#include "backends/metadata/on_gpu.h"

#include "engines/plan.h"

#include <algorithm>
#include <cstring>

namespace smla {

namespace {

PlanMaxima on_gpu(PlanMaxima maxima) {
    maxima.allocator = {};
    return maxima;
}

size_t whole_units(size_t bytes) { return round_up(bytes, StagingBuffer::kUnit); }

}  // namespace

GpuMetadata::GpuMetadata(Context& context, const Plan& plan, const Tensor& fields, BatchTables& tables)
    : device_(context.device()),
      plan_(plan),
      there_(on_gpu(plan.maxima()), plan_place(context)),
      fields_(device_, span_bytes(fields)),
      tables_(tables),
      table_memory_(device_, tables.bytes()) {
    device_.upload(fields_.data(), fields.data, span_bytes(fields), nullptr);
    device_.fill(table_memory_.data(), 0xff, tables.bytes(), nullptr);
    tables.place(placed_at(make_tensor(static_cast<void*>(nullptr), SMLA_U8, {int64_t(tables.bytes())}),
                           table_memory_.data(), device_));
    const size_t tokens = size_t(plan.maxima().max_tokens);
    rope_ = DeviceBuffer(device_, whole_units(tokens * sizeof(int32_t)));
    size_t bytes = whole_units(span_bytes(fields)) + rope_.bytes() + tables.bytes();
    for (DeviceBuffer& slots : slots_) {
        slots = DeviceBuffer(device_, whole_units(tokens * sizeof(int64_t)));
        bytes += slots.bytes();
    }
    staging_buffer_ = device_.open_staging_buffer(bytes);
    copies_.reserve(StagingBuffer::kMostCopies);
    device_.wait(nullptr);  // builds may use any stream
}

char* GpuMetadata::stage(void* to, size_t bytes) {
    bytes = whole_units(bytes);
    copies_.push_back({staged_, to, bytes});
    char* const at = staging_ + staged_;
    staged_ += bytes;
    return at;
}

void GpuMetadata::begin() {
    copies_.clear();
    staged_ = 0;
    staging_ = staging_buffer_->next();
}

// Fields and plan arrays are padded to whole units, so the last unit may be read whole.
void GpuMetadata::put(const Field& field, size_t bytes) {
    if (bytes) std::memcpy(stage(field.device.data, bytes), field.host.data, whole_units(bytes));
}

void GpuMetadata::put_numbers(const Tensor& from, const DeviceBuffer& to) {
    const size_t bytes = span_bytes(from);
    if (bytes) std::memcpy(stage(to.data(), bytes), from.data, whole_units(bytes));
}

// Returns a group for the plan on the GPU, with the slots that the host's plan computed.
PlanGroup GpuMetadata::plan_group(PlanGroup PlanBatch::*member, const PlanBatch& host,
                                  const Tensor& slots) const {
    const PlanGroup& group = host.*member;
    return {.block_table = tables_.shown(member),
            .slots = slots,
            .page_tokens = group.page_tokens,
            .page_rows = group.page_rows};
}

void GpuMetadata::finish(const PlanBatch& batch, const Field& starts, const Field& lengths) {
    tables_.copy(batch, [&](void* to, size_t bytes) { return stage(to, bytes); });
    const PlanFields& fields = plan_.fields();
    put_numbers(fields.rope_position, rope_);
    const bool entries = index_holds_entries(plan_.maxima());
    const Tensor* const host[kTokenGroups] = {&fields.primary_slot, &fields.window_slot, &fields.state_slot,
                                              &fields.index_state_slot,
                                              entries ? nullptr : &fields.index_slot};
    Tensor slots[kTokenGroups]{};
    for (int g = 0; g < kTokenGroups; ++g) {
        if (!host[g] || !present(*host[g])) continue;
        put_numbers(*host[g], slots_[g]);
        slots[g] = placed_at(*host[g], slots_[g].data(), device_);
    }
    staging_buffer_->copy(copies_, batch.stream);

    PlanBatch out{};
    out.struct_size = sizeof out;
    out.tokens = int32_t(std::max<int64_t>(plan_.size().tokens, 1));  // an empty step still resets the fields
    out.query_start_loc = starts.device;
    out.seq_lens = lengths.device;
    out.rope_positions = placed_at(fields.rope_position, rope_.data(), device_);
    out.primary = plan_group(&PlanBatch::primary, batch, slots[0]);
    out.window = plan_group(&PlanBatch::window, batch, slots[1]);
    out.state = plan_group(&PlanBatch::state, batch, slots[2]);
    out.index_state = plan_group(&PlanBatch::index_state, batch, slots[3]);
    out.index = plan_group(&PlanBatch::index, batch, slots[4]);
    out.compressed = plan_group(&PlanBatch::compressed, batch);
    out.stream = batch.stream;
    there_.build(out);
}

Tensor GpuMetadata::side_of(const Tensor& host, size_t offset) const {
    return placed_at(host, static_cast<char*>(fields_.data()) + offset, device_);
}

// Returns a plan field with the host plan's shape, because an empty step has one token on the GPU.
Tensor GpuMetadata::plan_field(Tensor PlanFields::*member) const {
    const Tensor& host = plan_.fields().*member;
    return present(host) ? placed_at(host, (there_.fields().*member).data, device_) : host;
}

}  // namespace smla
