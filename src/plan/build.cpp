// What a build writes, field by field. The batch has been checked: nothing here can fail.
#include "ops/map/map.h"
#include "plan/pages.h"
#include "plan/plan.h"

#include <algorithm>

namespace smla {

namespace {

int32_t* ints(const Tensor& field) { return static_cast<int32_t*>(field.data); }
int64_t* longs(const Tensor& field) { return static_cast<int64_t*>(field.data); }
uint8_t* bytes(const Tensor& field) { return static_cast<uint8_t*>(field.data); }

PageRule page_rule(const PlanGroup& group) {
    return {group.page_tokens, group.page_rows ? group.page_rows : group.page_tokens};
}
const int32_t* table_row(const PlanGroup& group, int64_t request) {
    return reinterpret_cast<const int32_t*>(address(group.block_table, request));
}

}  // namespace

void Plan::build(const PlanBatch& batch) {
    size_ = check_batch(maxima_, batch);
    pad_tokens();
    resize();
    split_ = split_decodes_and_prefills(ints(batch.query_start_loc), size_.requests, threshold(),
                                        maxima_.uniform_decodes != 0);
    const int64_t split[] = {split_.decodes, split_.prefills, split_.decode_tokens, split_.prefill_tokens};
    std::copy(split, split + 4, ints(fields_.batch_split));

    place_tokens(batch);
    if (maxima_.groups & SMLA_PLAN_PRIMARY) place_slots(batch, batch.primary, fields_.primary_slot);
    if (maxima_.groups & SMLA_PLAN_WINDOW) place_slots(batch, batch.window, fields_.window_slot);
    if (maxima_.groups & SMLA_PLAN_STATE) place_slots(batch, batch.state, fields_.state_slot);
    if (maxima_.groups & SMLA_PLAN_INDEX_STATE)
        place_slots(batch, batch.index_state, fields_.index_state_slot);
    const bool index = maxima_.groups & SMLA_PLAN_INDEX, index_entries = index_holds_entries(maxima_);
    if (index && !index_entries) place_slots(batch, batch.index, fields_.index_slot);
    hide_invalid_tokens();
    if (maxima_.groups & SMLA_PLAN_WINDOW) list_windows(batch);
    if (maxima_.groups & SMLA_PLAN_COMPRESSED) {
        count_entries();
        place_entries(batch.compressed, fields_.compressed_slot);
        if (index) place_entries(batch.index, fields_.index_slot);
        if (maxima_.list_entries) list_entries(batch);
    }
    if (index) score_windows(batch);
}

void Plan::place_tokens(const PlanBatch& batch) {
    const int32_t *starts = ints(batch.query_start_loc), *lengths = ints(batch.seq_lens);
    int32_t *request = ints(fields_.request_of_token), *position = ints(fields_.position);
    for (int64_t r = 0; r < size_.requests; ++r) {
        const int32_t first = lengths[r] - (starts[r + 1] - starts[r]);
        for (int32_t t = starts[r]; t < starts[r + 1]; ++t) {
            request[t] = int32_t(r);
            position[t] = first + (t - starts[r]);
        }
    }
    int32_t* rope = ints(fields_.rope_position);
    if (present(batch.rope_positions)) {
        for (int64_t t = 0; t < size_.query_tokens; ++t) rope[t] = int32_t(load_int(batch.rope_positions, t));
    } else {
        std::copy(position, position + size_.query_tokens, rope);
    }
    std::fill(bytes(fields_.is_valid), bytes(fields_.is_valid) + size_.query_tokens, uint8_t(1));
}

// The row that each token writes, given or looked up; a token without one is not valid.
void Plan::place_slots(const PlanBatch& batch, const PlanGroup& group, const Tensor& slots) {
    int64_t* out = longs(slots);
    if (present(group.slots)) {
        for (int64_t t = 0; t < size_.query_tokens; ++t)
            out[t] = std::max<int64_t>(load_int(group.slots, t), -1);
    } else {
        slots_from_table(batch.query_start_loc, batch.seq_lens, group.block_table, page_rule(group),
                         slice(slots, 0, 0, size_.query_tokens));
    }
    uint8_t* valid = bytes(fields_.is_valid);
    for (int64_t t = 0; t < size_.query_tokens; ++t) valid[t] = uint8_t(valid[t] & (out[t] >= 0));
}

void Plan::hide_invalid_tokens() {
    const uint8_t* valid = bytes(fields_.is_valid);
    const int32_t* position = ints(fields_.position);
    int32_t* visible = ints(fields_.visible_tokens);
    for (int64_t t = 0; t < size_.query_tokens; ++t) visible[t] = valid[t] ? position[t] + 1 : 0;
}

void Plan::list_windows(const PlanBatch& batch) {
    const int32_t *request = ints(fields_.request_of_token), *visible = ints(fields_.visible_tokens);
    const int64_t window = maxima_.window;
    const PageRule pages = page_rule(batch.window);
    for (int64_t t = 0; t < size_.query_tokens; ++t) {
        const int64_t n = std::min<int64_t>(visible[t], window);
        int32_t* rows = ints(fields_.window_rows) + t * window;
        if (n > 0) list_rows(table_row(batch.window, request[t]), pages, visible[t] - n, n, rows);
        std::fill(rows + n, rows + window, -1);
        ints(fields_.window_len)[t] = int32_t(n);
    }
}

void Plan::count_entries() {
    const int32_t* visible = ints(fields_.visible_tokens);
    int32_t* entries = ints(fields_.visible_entries);
    for (int64_t t = 0; t < size_.query_tokens; ++t) entries[t] = visible[t] / maxima_.ratio;
}

// The row of the entry that each token closes.
void Plan::place_entries(const PlanGroup& group, const Tensor& slots) {
    const int32_t *request = ints(fields_.request_of_token), *visible = ints(fields_.visible_tokens);
    const BlockTable table = block_table_of(group.block_table, group.page_tokens, group.page_rows);
    for (int64_t t = 0; t < size_.query_tokens; ++t)
        longs(slots)[t] = row_of(table, request[t], closed_entry(visible[t], maxima_.ratio));
}

void Plan::list_entries(const PlanBatch& batch) {
    const int32_t *request = ints(fields_.request_of_token), *entries = ints(fields_.visible_entries);
    const int64_t columns = entry_columns(maxima_);
    const PageRule pages = page_rule(batch.compressed);
    for (int64_t t = 0; t < size_.query_tokens; ++t) {
        const int64_t n = entries[t];
        int32_t* rows = ints(fields_.entry_rows) + t * columns;
        if (n > 0) list_rows(table_row(batch.compressed, request[t]), pages, 0, n, rows);
        if (listed_[t] > n) std::fill(rows + n, rows + listed_[t], -1);
        listed_[t] = int32_t(n);
        ints(fields_.entry_len)[t] = int32_t(n);
    }
}

void Plan::score_windows(const PlanBatch& batch) {
    const int32_t* lengths = ints(batch.seq_lens);
    const bool entries = index_holds_entries(maxima_);
    int32_t* cu = ints(fields_.ragged_cu);
    cu[0] = 0;
    for (int64_t r = 0; r < maxima_.max_requests; ++r) {
        const bool gathered = r >= split_.decodes && r < size_.requests;
        cu[r + 1] = cu[r] + (gathered ? lengths[r] / (entries ? maxima_.ratio : 1) : 0);
    }
    const int32_t* visible = ints(entries ? fields_.visible_entries : fields_.visible_tokens);
    const int32_t* request = ints(fields_.request_of_token);
    std::copy(visible, visible + size_.query_tokens, ints(fields_.score_end));
    for (int64_t t = 0; t < size_.query_tokens; ++t) {
        const int32_t start = cu[request[t]];
        ints(fields_.ragged_start)[t] = start;
        ints(fields_.ragged_end)[t] = start + (t >= split_.decode_tokens ? visible[t] : 0);
    }
}

}  // namespace smla
