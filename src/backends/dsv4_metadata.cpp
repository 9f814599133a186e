#include "backends/flashmla_sparse_dsv4.h"

#include <algorithm>
#include <numeric>

namespace smla {

namespace {

PlanMaxima hybrid_maxima(const BackendArgs& args) {
    constexpr int32_t kMore = SMLA_PLAN_INDEX | SMLA_PLAN_STATE | SMLA_PLAN_INDEX_STATE;
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = SMLA_PLAN_WINDOW | (args.ratio ? SMLA_PLAN_COMPRESSED : 0) | (args.plan_groups & kMore);
    maxima.max_tokens = args.max_tokens;
    maxima.max_requests = args.max_requests;
    maxima.max_seq_len = args.max_seq_len;
    maxima.speculative_tokens = args.speculative_tokens;
    maxima.window = args.window;
    maxima.ratio = args.ratio;
    maxima.list_entries = args.ratio == 128;
    maxima.topk = args.ratio == 4 ? args.topk : 0;
    maxima.heads = args.heads;
    maxima.workers = args.device.multiprocessors;
    maxima.batch_invariant = args.batch_invariant;
    maxima.allocator = args.allocator;
    return maxima;
}

// Rows [begin, end) of a [T,columns] field as [end - begin, 1, columns].
Tensor decode_view(const Tensor& field, int64_t begin, int64_t end) {
    return reshape_rows(slice(field, 0, begin, end), {1, field.shape[1]});
}

// The first `end - begin` lengths, the rest 0 as far as the last build reached.
void copy_lens(const Tensor& from, int64_t count, Tensor& to, int64_t& written) {
    std::copy_n(ints(from), count, ints(to));
    if (written > count) std::fill_n(ints(to) + count, written - count, 0);
    written = count;
    to.shape[0] = count;
}

}  // namespace

HybridMetadata::HybridMetadata(const BackendInstance& on, int64_t requests_per_part)
    : HybridMetadata(on, requests_per_part, true) {}

HybridMetadata::HybridMetadata(const BackendInstance& on, int64_t requests_per_part, bool complete)
    : Metadata(on, hybrid_maxima(on.config.args)),
      ratio_(on.config.args.ratio),
      window_(on.config.args.window),
      page_tokens_(on.config.args.page_tokens),
      window_page_tokens_(on.config.args.window_page_tokens),
      requests_per_part_(requests_per_part) {
    const BackendArgs& args = on.config.args;
    const int64_t tokens = args.max_tokens, requests = args.max_requests;
    num_decodes_ = &number("swa.num_decodes");
    num_prefills_ = &number("swa.num_prefills");
    num_decode_tokens_ = &number("swa.num_decode_tokens");
    num_prefill_tokens_ = &number("swa.num_prefill_tokens");
    window_block_size_ = &number("swa.block_size");
    window_size_ = &number("swa.window_size");
    window_table_ = &shown("swa.block_table");
    window_slots_ = &shown("swa.slot_mapping");
    token_to_req_ = &shown("swa.token_to_req_indices");
    is_valid_ = &shown("swa.is_valid_token");
    decode_rows_ = &shown("swa.decode_swa_indices");
    decode_lens_ = &own("swa.decode_swa_lens", SMLA_I32, {tokens}, 0);
    prefill_rows_ = &own("swa.prefill_swa_indices", SMLA_I32, {tokens, window_}, -1);
    prefill_lens_ = &own("swa.prefill_swa_lens", SMLA_I32, {tokens}, 0);
    prefill_seq_lens_ = &own("swa.prefill_seq_lens", SMLA_I32, {requests}, 0);
    prefill_gather_lens_ = &own("swa.prefill_gather_lens", SMLA_I32, {requests}, 0);
    if (ratio_) {
        slot_mapping_ = &shown("slot_mapping");
        block_table_ = &shown("block_table");
        req_id_per_token_ = &shown("req_id_per_token");
        block_size_ = &number("block_size");
        topk_tokens_ = &number("topk_tokens");
    }
    if (ratio_ == 128) {
        const int64_t columns = plan().fields().entry_rows.shape[1];
        entry_rows_ = &shown("c128a_global_decode_topk_indices");
        entry_lens_ = &own("c128a_decode_topk_lens", SMLA_I32, {tokens}, 0);
        prefill_entries_ =
            &own("c128a_prefill_topk_indices", SMLA_I32, {tokens, columns}, -1, FieldIs::made_there);
        listed_.resize(size_t(tokens));
    }
    if (complete) finish();
}

void HybridMetadata::finish() {
    Metadata::finish();
    *window_size_ = window_;
    *window_block_size_ = window_page_tokens_;
    if (!ratio_) return;
    *block_size_ = page_tokens_;
    *topk_tokens_ = args().topk;
}

void HybridMetadata::fill(const PlanBatch& batch) {
    fill_window(batch);
    if (ratio_) fill_main(batch);
    const uint8_t* valid = static_cast<const uint8_t*>(plan().fields().is_valid.data);
    for (int64_t t = 0; t < plan().size().query_tokens; ++t)
        if (!valid[t]) limit_rows(t, 0);
    divide(split().decode_tokens, split().decodes, requests_per_part_);
}

void HybridMetadata::fill_window(const PlanBatch& batch) {
    const PlanFields& fields = plan().fields();
    const int64_t decodes = split().decodes, decode_tokens = split().decode_tokens,
                  prefill_tokens = split().prefill_tokens;
    *num_decodes_ = int32_t(decodes);
    *num_prefills_ = int32_t(split().prefills);
    *num_decode_tokens_ = int32_t(decode_tokens);
    *num_prefill_tokens_ = int32_t(prefill_tokens);
    *window_block_size_ = batch.window.page_tokens;
    *window_table_ = batch.window.block_table;
    *window_slots_ = fields.window_slot;
    *token_to_req_ = fields.request_of_token;
    *is_valid_ = fields.is_valid;
    *decode_rows_ = decode_view(fields.window_rows, 0, decode_tokens);
    copy_lens(fields.window_len, decode_tokens, *decode_lens_, written_decode_lens_);
    prefill_rows_->shape[0] = prefill_lens_->shape[0] = prefill_tokens;
    std::copy_n(ints(fields.window_rows) + decode_tokens * window_, prefill_tokens * window_,
                ints(*prefill_rows_));
    std::copy_n(ints(fields.window_len) + decode_tokens, prefill_tokens, ints(*prefill_lens_));
    prefill_seq_lens_->shape[0] = prefill_gather_lens_->shape[0] = split().prefills;
    const int32_t *starts = ints(batch.query_start_loc), *lengths = ints(batch.seq_lens);
    for (int64_t i = 0; i < split().prefills; ++i) {
        const int64_t r = decodes + i;
        const int32_t query = starts[r + 1] - starts[r], prefix = lengths[r] - query;
        ints(*prefill_seq_lens_)[i] = lengths[r];
        ints(*prefill_gather_lens_)[i] = query + std::min(prefix, window_ - 1);
    }
}

void HybridMetadata::fill_main(const PlanBatch& batch) {
    const PlanFields& fields = plan().fields();
    *slot_mapping_ = fields.compressed_slot;
    *block_table_ = batch.compressed.block_table;
    *req_id_per_token_ = fields.request_of_token;
    *block_size_ = batch.compressed.page_tokens * ratio_;
    if (!entry_rows_) return;
    *entry_rows_ = decode_view(fields.entry_rows, 0, split().decode_tokens);
    copy_lens(fields.entry_len, split().decode_tokens, *entry_lens_, written_entry_lens_);
    list_prefill_entries();
}

// Entries 0, 1, ... of the request, as many as the token sees: a row keeps what the last build left right.
void HybridMetadata::list_prefill_entries() {
    const int64_t columns = prefill_entries_->shape[1], first = split().decode_tokens;
    prefill_entries_->shape[0] = split().prefill_tokens;
    for (int64_t i = 0; i < split().prefill_tokens; ++i) {
        int32_t* row = ints(*prefill_entries_) + i * columns;
        int32_t& listed = listed_[size_t(i)];
        const int32_t visible = ints(plan().fields().entry_len)[first + i];
        if (visible > listed) std::iota(row + listed, row + visible, listed);
        else std::fill(row + visible, row + listed, -1);
        listed = visible;
    }
}

void HybridMetadata::fill_there(const GpuMetadata& gpu, smla_stream stream) {
    if (!prefill_entries_) return;
    const Tensor visible = gpu.view(slice(plan().fields().entry_len, 0, split().decode_tokens, tokens()));
    const Tensor rows = gpu.view(*prefill_entries_);
    count_up_on_gpu(ints(visible), ints(rows), rows.shape[0], rows.shape[1], gpu.device(), stream);
}

StepFields HybridMetadata::host_step() const {
    const PlanFields& fields = plan().fields();
    StepFields out = Metadata::host_step();
    out.slots = fields.window_slot;
    out.window_table = *window_table_;
    out.window_rows = fields.window_rows;
    out.window_lengths = fields.window_len;
    if (!ratio_) return out;
    out.block_table = *block_table_;
    out.page_tokens = batch().compressed.page_tokens;
    out.page_rows = batch().compressed.page_rows;
    out.entry_rows = fields.entry_rows;
    out.entry_lengths = fields.entry_len;
    return out;
}

}  // namespace smla
