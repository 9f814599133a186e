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

GpuMetadata::GpuMetadata(Context& context, const BackendArgs& args, const Plan& plan, const Tensor& fields)
    : device_(context.device()),
      plan_(plan),
      there_(on_gpu(plan.maxima()), plan_place(context)),
      fields_(device_, span_bytes(fields)) {
    device_.upload(fields_.data(), fields.data, span_bytes(fields), nullptr);
    const PlanMaxima& maxima = plan.maxima();
    const int64_t ratio = std::max(maxima.ratio, 1), entries = ceil_div(maxima.max_seq_len, ratio),
                  entry_page = args.page_tokens / ratio;
    add_table(SMLA_GROUP_PRIMARY, &PlanBatch::primary, "batch.primary.page_tokens", args.page_tokens,
              maxima.max_seq_len);
    add_table(SMLA_GROUP_WINDOW, &PlanBatch::window, "batch.window.page_tokens", args.window_page_tokens,
              maxima.max_seq_len);
    add_table(SMLA_GROUP_COMPRESSED, &PlanBatch::compressed, "batch.compressed.page_tokens", entry_page,
              entries);
    if (index_holds_entries(maxima))  // its pages may be smaller than those of the entries, as V3.2's are
        add_table(SMLA_GROUP_INDEX, &PlanBatch::index, "batch.index.page_tokens",
                  std::min<int64_t>(entry_page, 64), entries);
    const size_t tokens = size_t(maxima.max_tokens);
    rope_ = DeviceBuffer(device_, whole_units(tokens * sizeof(int32_t)));
    size_t bytes = whole_units(span_bytes(fields)) + rope_.bytes();
    for (DeviceBuffer& slots : slots_) {
        slots = DeviceBuffer(device_, whole_units(tokens * sizeof(int64_t)));
        bytes += slots.bytes();
    }
    for (const Table& table : tables_) bytes += table.memory.bytes();
    staging_buffer_ = open_staging_buffer(device_, bytes);
    copies_.reserve(StagingBuffer::kMostCopies);
    device_.wait(nullptr);  // builds may come on any stream
}

void GpuMetadata::add_table(int32_t group, PlanGroup PlanBatch::*member, const char* field,
                            int64_t usual_page, int64_t tokens) {
    if (!(plan_.maxima().groups & group)) return;
    Table& table = tables_.emplace_back(Table{group, member, field, usual_page, tokens});
    table.columns = ceil_div(tokens, usual_page);
    const size_t blocks = size_t(plan_.maxima().max_requests) * size_t(table.columns);
    table.memory = DeviceBuffer(device_, whole_units(blocks * sizeof(int32_t)));
    device_.fill(table.memory.data(), 0xff, table.memory.bytes(), nullptr);
}

void GpuMetadata::check(const PlanBatch& batch) const {
    staging_buffer_->refuse_capture("batch.stream", batch.stream);
    for (const Table& table : tables_) {
        const int64_t page = (batch.*table.member).page_tokens;
        if (page < 1) continue;  // the plan refuses it
        const size_t blocks = size_t(plan_.maxima().max_requests) * size_t(ceil_div(table.tokens, page));
        SMLA_CHECK(blocks * sizeof(int32_t) <= table.memory.bytes(), table.page_tokens_field, page,
                   text(table.usual_page, " or more: the GPU's copy of the table has no more room"));
    }
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

// Fields and the arrays of the plan lie on whole units, so the last unit may be read whole.
void GpuMetadata::put(const Field& field, size_t bytes) {
    if (bytes) std::memcpy(stage(field.device.data, bytes), field.host.data, whole_units(bytes));
}

void GpuMetadata::put_numbers(const Tensor& from, const DeviceBuffer& to) {
    const size_t bytes = span_bytes(from);
    if (bytes) std::memcpy(stage(to.data(), bytes), from.data, whole_units(bytes));
}

void GpuMetadata::take_tables(const PlanBatch& batch) {
    for (Table& table : tables_) {
        const PlanGroup& group = batch.*table.member;
        table.host = group.block_table;
        table.columns = ceil_div(table.tokens, group.page_tokens);
    }
}

// Columns that the batch does not have are holes.
void GpuMetadata::put_table(const Table& table) {
    if (!present(table.host)) return;
    const int64_t requests = table.host.shape[0], given = std::min(table.host.shape[1], table.columns);
    const size_t blocks = size_t(requests * table.columns);
    if (blocks == 0) return;
    auto* out = reinterpret_cast<int32_t*>(stage(table.memory.data(), blocks * sizeof(int32_t)));
    for (int64_t r = 0; r < requests; ++r, out += table.columns) {
        std::memcpy(out, address(table.host, r), size_t(given) * sizeof(int32_t));
        std::fill(out + given, out + table.columns, -1);
    }
}

// A group as the plan on the GPU takes it, with the slots that the plan of the host found.
PlanGroup GpuMetadata::plan_group(int32_t bit, const PlanGroup& host, const Tensor* slots) const {
    PlanGroup out{};
    if (!(plan_.maxima().groups & bit)) return out;
    out.page_tokens = host.page_tokens;
    out.page_rows = host.page_rows;
    out.block_table = table(bit);
    if (slots) out.slots = *slots;
    return out;
}

void GpuMetadata::finish(const PlanBatch& batch, const Field& starts, const Field& lengths) {
    for (const Table& table : tables_) put_table(table);
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
        slots[g] = placed(*host[g], slots_[g].data());
    }
    staging_buffer_->copy(copies_, batch.stream);

    PlanBatch out{};
    out.struct_size = sizeof out;
    out.tokens = int32_t(std::max<int64_t>(plan_.size().tokens, 1));  // an empty step still resets the fields
    out.query_start_loc = starts.device;
    out.seq_lens = lengths.device;
    out.rope_positions = placed(fields.rope_position, rope_.data());
    out.primary = plan_group(SMLA_GROUP_PRIMARY, batch.primary, &slots[0]);
    out.window = plan_group(SMLA_GROUP_WINDOW, batch.window, &slots[1]);
    out.state = plan_group(SMLA_GROUP_STATE, batch.state, &slots[2]);
    out.index_state = plan_group(SMLA_GROUP_INDEX_STATE, batch.index_state, &slots[3]);
    out.index = plan_group(SMLA_GROUP_INDEX, batch.index, entries ? nullptr : &slots[4]);
    out.compressed = plan_group(SMLA_GROUP_COMPRESSED, batch.compressed, nullptr);
    out.stream = batch.stream;
    there_.build(out);
}

Tensor GpuMetadata::placed(Tensor host, void* data) const {
    host.data = data;
    host.device_type = device_.type();
    host.device_index = device_.index();
    return host;
}

Tensor GpuMetadata::side_of(const Tensor& host, size_t offset) const {
    return placed(host, static_cast<char*>(fields_.data()) + offset);
}

// The shape is that of the host's plan: an empty step has one token on the GPU.
Tensor GpuMetadata::plan_field(Tensor PlanFields::*member) const {
    const Tensor& host = plan_.fields().*member;
    return present(host) ? placed(host, (there_.fields().*member).data) : host;
}

Tensor GpuMetadata::table(int32_t group) const {
    for (const Table& table : tables_) {
        if (table.group != group || !present(table.host)) continue;
        Tensor out = placed(table.host, table.memory.data());
        out.shape[1] = std::min(out.shape[1], table.columns);
        out.stride_elems[0] = table.columns;
        return out;
    }
    return {};
}

Tensor GpuMetadata::kernel_table(int32_t group) const {
    Tensor out = table(group);
    if (!present(out)) return out;
    out.shape[0] = plan_.maxima().max_requests;
    out.shape[1] = out.stride_elems[0];
    return out;
}

}  // namespace smla
