#include "backends/metadata_on_gpu.h"

#include "engines/plan.h"

#include <algorithm>
#include <cstring>

namespace smla {

namespace {

PlanMaxima on_gpu(PlanMaxima maxima) {
    maxima.allocator = {};
    return maxima;
}

size_t whole_units(size_t bytes) { return round_up(bytes, Outbox::kUnit); }

}  // namespace

GpuMetadata::GpuMetadata(Context& context, const BackendArgs& args, const Plan& plan, const Tensor& fields)
    : device_(context.device()),
      plan_(plan),
      there_(on_gpu(plan.maxima()), plan_place(context)),
      fields_(fields),
      fields_there_(device_, span_bytes(fields)) {
    device_.upload(fields_there_.data(), fields.data, span_bytes(fields), nullptr);
    const PlanMaxima& maxima = plan.maxima();
    const int64_t ratio = std::max(maxima.ratio, 1), entries = ceil_div(maxima.max_seq_len, ratio),
                  entry_page = args.page_tokens / ratio;
    add_table(SMLA_PLAN_PRIMARY, &PlanBatch::primary, "batch.primary.page_tokens", args.page_tokens,
              maxima.max_seq_len);
    add_table(SMLA_PLAN_WINDOW, &PlanBatch::window, "batch.window.page_tokens", args.window_page_tokens,
              maxima.max_seq_len);
    add_table(SMLA_PLAN_COMPRESSED, &PlanBatch::compressed, "batch.compressed.page_tokens", entry_page,
              entries);
    if (index_holds_entries(maxima))
        add_table(SMLA_PLAN_INDEX, &PlanBatch::index, "batch.index.page_tokens", entry_page, entries);
    const size_t tokens = size_t(maxima.max_tokens);
    rope_ = DeviceBuffer(device_, whole_units(tokens * sizeof(int32_t)));
    size_t bytes = whole_units(span_bytes(fields)) + rope_.bytes();
    for (DeviceBuffer& slots : slots_) {
        slots = DeviceBuffer(device_, whole_units(tokens * sizeof(int64_t)));
        bytes += slots.bytes();
    }
    for (const Table& table : tables_) bytes += table.memory.bytes();
    outbox_ = open_outbox(device_, bytes);
    parcels_.reserve(Outbox::kMostParcels);
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
    outbox_->refuse_capture("batch.stream", batch.stream);
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
    parcels_.push_back({staged_, to, bytes});
    char* const at = staging_ + staged_;
    staged_ += bytes;
    return at;
}

void GpuMetadata::begin() {
    parcels_.clear();
    staged_ = 0;
    staging_ = outbox_->next();
}

// Fields and what the plan lays out end on whole units, so their last one is there to be read.
void GpuMetadata::put(const Tensor& field, size_t bytes) {
    if (bytes == 0) return;
    const size_t at = size_t(static_cast<const char*>(field.data) - static_cast<const char*>(fields_.data));
    std::memcpy(stage(static_cast<char*>(fields_there_.data()) + at, bytes), field.data, whole_units(bytes));
}

void GpuMetadata::put_numbers(const Tensor& from, const DeviceBuffer& to) {
    const size_t bytes = span_bytes(from);
    if (bytes) std::memcpy(stage(to.data(), bytes), from.data, whole_units(bytes));
}

// Behind the batch's columns there are no blocks.
void GpuMetadata::put_table(Table& table, const PlanGroup& group) {
    table.host = group.block_table;
    table.columns = ceil_div(table.tokens, group.page_tokens);
    if (!present(group.block_table)) return;
    const int64_t requests = group.block_table.shape[0];
    const int64_t given = std::min(group.block_table.shape[1], table.columns);
    const size_t blocks = size_t(requests * table.columns);
    if (blocks == 0) return;
    auto* out = reinterpret_cast<int32_t*>(stage(table.memory.data(), blocks * sizeof(int32_t)));
    for (int64_t r = 0; r < requests; ++r, out += table.columns) {
        std::memcpy(out, address(group.block_table, r), size_t(given) * sizeof(int32_t));
        std::fill(out + given, out + table.columns, -1);
    }
}

// A group as the plan there takes it: tables lie in memory of their own, slots are those of the host's plan.
PlanGroup GpuMetadata::plan_group(int32_t bit, const PlanGroup& host, const Tensor* slots) const {
    PlanGroup out{};
    if (!(plan_.maxima().groups & bit)) return out;
    out.page_tokens = host.page_tokens;
    out.page_rows = host.page_rows;
    for (const Table& table : tables_)
        if (table.group == bit && present(table.host)) out.block_table = view(table.host);
    if (slots) out.slots = *slots;
    return out;
}

void GpuMetadata::finish(const PlanBatch& batch, const Tensor& starts, const Tensor& lengths) {
    for (Table& table : tables_) put_table(table, batch.*table.member);
    const PlanFields& fields = plan_.fields();
    put_numbers(fields.rope_position, rope_);
    const bool entries = index_holds_entries(plan_.maxima());
    const Tensor* const host[kTokenGroups] = {&fields.primary_slot, &fields.window_slot, &fields.state_slot,
                                              &fields.index_state_slot,
                                              entries ? nullptr : &fields.index_slot};
    Tensor slots[kTokenGroups]{};
    const auto placed = [&](const Tensor& from, const DeviceBuffer& to) {
        Tensor out = from;
        out.data = to.data();
        out.device_type = device_.type();
        out.device_index = device_.index();
        return out;
    };
    for (int g = 0; g < kTokenGroups; ++g) {
        if (!host[g] || !present(*host[g])) continue;
        put_numbers(*host[g], slots_[g]);
        slots[g] = placed(*host[g], slots_[g]);
    }
    outbox_->send(parcels_, batch.stream);

    PlanBatch out{};
    out.struct_size = sizeof out;
    out.tokens = int32_t(std::max<int64_t>(plan_.size().tokens, 1));  // an empty step still resets the fields
    out.query_start_loc = view(starts);
    out.seq_lens = view(lengths);
    out.rope_positions = placed(fields.rope_position, rope_);
    out.primary = plan_group(SMLA_PLAN_PRIMARY, batch.primary, &slots[0]);
    out.window = plan_group(SMLA_PLAN_WINDOW, batch.window, &slots[1]);
    out.state = plan_group(SMLA_PLAN_STATE, batch.state, &slots[2]);
    out.index_state = plan_group(SMLA_PLAN_INDEX_STATE, batch.index_state, &slots[3]);
    out.index = plan_group(SMLA_PLAN_INDEX, batch.index, entries ? nullptr : &slots[4]);
    out.compressed = plan_group(SMLA_PLAN_COMPRESSED, batch.compressed, nullptr);
    out.stream = batch.stream;
    there_.build(out);
}

const GpuMetadata::Table* GpuMetadata::table_of(const Tensor& host) const {
    for (const Table& table : tables_) {
        const auto* begin = static_cast<const char*>(table.host.data);
        const auto* at = static_cast<const char*>(host.data);
        if (present(table.host) && at >= begin && at < begin + span_bytes(table.host)) return &table;
    }
    return nullptr;
}

Tensor GpuMetadata::view(const Tensor& host) const {
    if (!present(host)) return host;
    Tensor out = host;
    out.device_type = device_.type();
    out.device_index = device_.index();
    const auto* const at = static_cast<const char*>(host.data);
    const auto within = [&](const Tensor& block, void* there) {
        const auto* const begin = static_cast<const char*>(block.data);
        if (!at || at < begin || at > begin + block.shape[0]) return false;
        out.data = static_cast<char*>(there) + (at - begin);
        return true;
    };
    if (within(fields_, fields_there_.data()) || within(plan_.memory(), there_.memory().data)) return out;
    const Table* const table = table_of(host);
    if (!table) {  // of no elements
        out.data = nullptr;
        return out;
    }
    const int64_t stride = table->host.stride_elems[0] * int64_t(sizeof(int32_t));
    const int64_t first = stride ? (at - static_cast<const char*>(table->host.data)) / stride : 0;
    out.data = static_cast<int32_t*>(table->memory.data()) + first * table->columns;
    out.shape[1] = std::min(host.shape[1], table->columns);
    out.stride_elems[0] = table->columns;
    return out;
}

Tensor GpuMetadata::kernel_view(const Tensor& host) const {
    Tensor out = view(host);
    if (const Table* const table = present(host) ? table_of(host) : nullptr) {
        out.data = table->memory.data();
        out.shape[0] = plan_.maxima().max_requests;
        out.shape[1] = table->columns;
    }
    return out;
}

}  // namespace smla
