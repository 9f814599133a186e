#include "backends/metadata/tables.h"

namespace smla {

BatchTables::BatchTables(const PlanMaxima& maxima, const BackendArgs& args, bool plan)
    : requests_(maxima.max_requests) {
    const int64_t tokens = maxima.max_seq_len, ratio = std::max(maxima.ratio, 1),
                  entries = ceil_div(tokens, ratio), entry_page = args.page_tokens / ratio;
    if (maxima.groups & SMLA_GROUP_PRIMARY)
        add(&PlanBatch::primary, "batch.primary.page_tokens", args.page_tokens, tokens);
    if (maxima.groups & SMLA_GROUP_WINDOW)
        add(&PlanBatch::window, "batch.window.page_tokens", args.window_page_tokens, tokens);
    if (maxima.groups & SMLA_GROUP_COMPRESSED)
        add(&PlanBatch::compressed, "batch.compressed.page_tokens", entry_page, entries);
    // Pages of index entries may be smaller than pages of entries, as in V3.2.
    if (plan && (maxima.groups & SMLA_GROUP_INDEX) && index_holds_entries(maxima))
        add(&PlanBatch::index, "batch.index.page_tokens", std::min<int64_t>(entry_page, 64), entries);
}

void BatchTables::add(PlanGroup PlanBatch::*member, const char* field, int64_t usual_page, int64_t tokens) {
    const size_t blocks = size_t(requests_) * size_t(ceil_div(tokens, usual_page));
    tables_.push_back({member, field, usual_page, tokens, round_up(blocks * sizeof(int32_t), kCacheLine)});
}

size_t BatchTables::bytes() const {
    size_t bytes = 0;
    for (const Table& table : tables_) bytes += table.bytes;
    return bytes;
}

void BatchTables::place(const Tensor& memory) {
    int64_t at = 0;
    for (Table& table : tables_) {
        table.memory = slice(memory, 0, at, at + int64_t(table.bytes));
        at += int64_t(table.bytes);
    }
}

void BatchTables::check(const PlanBatch& batch) const {
    for (const Table& table : tables_) {
        const int64_t page = (batch.*table.member).page_tokens;
        if (page < 1) continue;  // the plan rejects this page size
        const size_t blocks = size_t(requests_) * size_t(ceil_div(table.tokens, page));
        SMLA_CHECK(blocks * sizeof(int32_t) <= table.bytes, table.page_tokens_field, page,
                   text("at least ", table.usual_page, " (the page size of the backend)"));
    }
}

void BatchTables::take_shapes(const PlanBatch& batch) {
    for (Table& table : tables_) {
        const PlanGroup& group = batch.*table.member;
        table.shown = group.block_table;
        if (!present(table.shown)) continue;
        const int64_t columns = ceil_div(table.tokens, group.page_tokens);
        table.shown.data = table.memory.data;
        table.shown.device_type = table.memory.device_type;
        table.shown.device_index = table.memory.device_index;
        table.shown.shape[1] = std::min(table.shown.shape[1], columns);
        table.shown.stride_elems[0] = columns;
    }
}

void BatchTables::write(const Tensor& from, const Tensor& shown, void* to) {
    auto* out = static_cast<int32_t*>(to);
    const int64_t given = shown.shape[1], columns = shown.stride_elems[0];
    for (int64_t r = 0; r < shown.shape[0]; ++r, out += columns) {
        std::memcpy(out, address(from, r), size_t(given) * sizeof(int32_t));
        std::fill(out + given, out + columns, -1);
    }
}

Tensor BatchTables::shown(PlanGroup PlanBatch::*member) const {
    for (const Table& table : tables_)
        if (table.member == member) return table.shown;
    return {};
}

Tensor BatchTables::whole(PlanGroup PlanBatch::*member) const {
    Tensor out = shown(member);
    if (!present(out)) return out;
    out.shape[0] = requests_;
    out.shape[1] = out.stride_elems[0];
    return out;
}

}  // namespace smla
