// A build on the host. The batch has been checked, so nothing here can fail. The rule that computes one token
// is in job.h, which GPU kernels share.
#include "ops/map/map.h"
#include "plan/pages.h"
#include "plan/plan.h"

#include <algorithm>

namespace smla {

namespace {

BlockTable table_of(const PlanGroup& group) {
    if (!present(group.block_table)) return {};
    return block_table_of(group.block_table, group.page_tokens, group.page_rows);
}

PageRule page_rule(const BlockTable& table) { return {table.page_tokens, table.page_rows}; }

const int32_t* table_row(const BlockTable& table, int64_t request) {
    return table.blocks + request * table.request_stride;
}

}  // namespace

PlanJob Plan::job(const PlanBatch& batch) const {
    PlanJob out;
    out.tokens = size_.tokens;
    out.requests = size_.requests;
    out.max_tokens = maxima_.max_tokens;
    out.max_requests = maxima_.max_requests;
    out.threshold = threshold();
    out.entry_columns = entry_columns(maxima_);
    out.max_seq_len = maxima_.max_seq_len;
    out.window = maxima_.window;
    out.ratio = maxima_.ratio;
    out.uniform = maxima_.uniform_decodes != 0;
    out.index_entries = (maxima_.groups & SMLA_GROUP_INDEX) && index_holds_entries(maxima_);
    out.starts = static_cast<const int32_t*>(batch.query_start_loc.data);
    out.lengths = static_cast<const int32_t*>(batch.seq_lens.data);
    out.rope = numbers_of(batch.rope_positions);
#define SMLA_PLAN_POINTER(name, dtype, shape, padding, feature) \
    out.out.name = static_cast<Stored<dtype>::type*>(fields_.name.data);
    SMLA_PLAN_FIELDS(SMLA_PLAN_POINTER)
#undef SMLA_PLAN_POINTER
    const auto slots = [&](const PlanGroup& group, int64_t* to) {
        if (to) out.slots[out.slot_groups++] = {numbers_of(group.slots), table_of(group), to};
    };
    slots(batch.primary, out.out.primary_slot);
    slots(batch.window, out.out.window_slot);
    slots(batch.state, out.out.state_slot);
    slots(batch.index_state, out.out.index_state_slot);
    if (!out.index_entries) slots(batch.index, out.out.index_slot);
    out.window_table = table_of(batch.window);
    out.entry_table = table_of(batch.compressed);
    out.index_table = table_of(batch.index);
    out.listed = listed_;
    out.starts_in_step = starts_;
    out.reach = reach_;
    return out;
}

void Plan::build(const PlanBatch& batch) {
    size_ = check_batch(maxima_, batch, !place_.build,
                        CheckContext::on(place_.device->type(), place_.device->index()));
    resize();
    for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = pages_of(batch, 1 << i);
    if (place_.build) place_.build(job(batch), *place_.device, batch.stream);
    else build_here(job(batch));
}

void Plan::build_here(const PlanJob& job) {
    split_ = split_decodes_and_prefills(job.starts, size_.requests, threshold(), job.uniform);
    const int64_t split[] = {split_.decodes, split_.prefills, split_.decode_tokens, split_.prefill_tokens};
    std::copy(split, split + 4, job.out.batch_split);
    if (job.out.ragged_cu) add_up_keys(job);
    place_tokens(job);
    // Tokens of the last build that this build lacks become padding.
    const int64_t tokens = std::max(size_.query_tokens, used_);
    for (int64_t t = size_.query_tokens; t < tokens; ++t) place_token(job, t, {});
    if (job.out.window_rows) list_windows(job, tokens);
    if (job.out.entry_rows) list_entries(job, tokens);
    used_ = size_.query_tokens;
}

void Plan::add_up_keys(const PlanJob& job) {
    int32_t* cu = job.out.ragged_cu;
    cu[0] = 0;
    for (int64_t r = 0; r < maxima_.max_requests; ++r) {
        const bool gathered = r >= split_.decodes && r < size_.requests;
        cu[r + 1] = cu[r] + (gathered ? gathered_keys(job, r, job.starts[r + 1] - job.starts[r]) : 0);
    }
}

void Plan::place_tokens(const PlanJob& job) {
    for (int64_t r = 0; r < size_.requests; ++r)
        for (int64_t t = job.starts[r]; t < job.starts[r + 1]; ++t)
            place_token(job, t, token_of(job, job.starts, r, t));
}

// Writes window_row() of every column, with one table lookup per page.
void Plan::list_windows(const PlanJob& job, int64_t tokens) {
    for (int64_t t = 0; t < tokens; ++t) {
        const int64_t n = job.out.window_len[t];
        int32_t* rows = job.out.window_rows + t * job.window;
        if (n > 0)
            list_rows(table_row(job.window_table, job.out.request_of_token[t]), page_rule(job.window_table),
                      job.out.visible_tokens[t] - n, n, rows);
        std::fill(rows + n, rows + job.window, -1);
    }
}

void Plan::list_entries(const PlanJob& job, int64_t tokens) {
    for (int64_t t = 0; t < tokens; ++t) {
        const int64_t n = job.out.entry_len[t];
        int32_t* rows = job.out.entry_rows + t * job.entry_columns;
        if (n > 0)
            list_rows(table_row(job.entry_table, job.out.request_of_token[t]), page_rule(job.entry_table), 0,
                      n, rows);
        if (job.listed[t] > n) std::fill(rows + n, rows + job.listed[t], -1);
        job.listed[t] = int32_t(n);
    }
}

}  // namespace smla
