// Metadata fields of the V4 and V4.1 backends: a window cache, and a compressed cache in layers with entries.
#include "backends/metadata/sets.h"

#include <algorithm>
#include <numeric>

namespace smla {

namespace {

// Returns rows [0, n) of a [T,columns] field as [n,1,columns].
Field decode_rows(const Field& field, int64_t n) {
    return reshape_rows(slice(field, 0, 0, n), {1, field.host.shape[1]});
}

// Copies the first lengths of the plan, and zeroes further lengths of the last build.
void copy_lengths(const Field& from, Field& to, int64_t& written) {
    const int64_t count = to.host.shape[0];
    std::copy_n(ints(from), count, ints(to));
    if (written > count) std::fill_n(ints(to) + count, written - count, 0);
    written = count;
}

class WindowFields final : public FieldSet {
public:
    explicit WindowFields(Metadata& metadata) : FieldSet(metadata) {
        const int64_t tokens = on_.args().max_tokens, requests = on_.args().max_requests;
        num_decodes_ = &on_.number("swa.num_decodes");
        num_prefills_ = &on_.number("swa.num_prefills");
        num_decode_tokens_ = &on_.number("swa.num_decode_tokens");
        num_prefill_tokens_ = &on_.number("swa.num_prefill_tokens");
        block_size_ = &on_.number("swa.block_size");
        window_size_ = &on_.number("swa.window_size");
        table_ = &on_.shown("swa.block_table");
        slots_ = &on_.shown("swa.slot_mapping");
        token_to_req_ = &on_.shown("swa.token_to_req_indices");
        is_valid_ = &on_.shown("swa.is_valid_token");
        decode_rows_ = &on_.shown("swa.decode_swa_indices");
        decode_lens_ = &on_.own("swa.decode_swa_lens", SMLA_I32, {tokens}, 0);
        prefill_rows_ = &on_.own("swa.prefill_swa_indices", SMLA_I32, {tokens, on_.args().window}, -1);
        prefill_lens_ = &on_.own("swa.prefill_swa_lens", SMLA_I32, {tokens}, 0);
        prefill_seq_lens_ = &on_.own("swa.prefill_seq_lens", SMLA_I32, {requests}, 0);
        prefill_gather_lens_ = &on_.own("swa.prefill_gather_lens", SMLA_I32, {requests}, 0);
    }
    void begin() override {
        *window_size_ = on_.args().window;
        *block_size_ = on_.args().window_page_tokens;
    }
    void shape(const PlanBatch& batch) override {
        const BatchSplit& split = on_.split();
        *num_decodes_ = int32_t(split.decodes);
        *num_prefills_ = int32_t(split.prefills);
        *num_decode_tokens_ = int32_t(split.decode_tokens);
        *num_prefill_tokens_ = int32_t(split.prefill_tokens);
        *block_size_ = batch.window.page_tokens;
        *table_ = on_.table(&PlanBatch::window);
        *slots_ = on_.plan_field(&PlanFields::window_slot);
        *token_to_req_ = on_.plan_field(&PlanFields::request_of_token);
        *is_valid_ = on_.plan_field(&PlanFields::is_valid);
        *decode_rows_ = decode_rows(on_.plan_field(&PlanFields::window_rows), split.decode_tokens);
        decode_lens_->resize(split.decode_tokens);
        prefill_rows_->resize(split.prefill_tokens);
        prefill_lens_->resize(split.prefill_tokens);
        prefill_seq_lens_->resize(split.prefills);
        prefill_gather_lens_->resize(split.prefills);
    }
    void fill(const PlanBatch& batch) override {
        const BatchSplit& split = on_.split();
        fill_rows(split);
        fill_prefills(batch, split);
        const auto* valid = static_cast<const uint8_t*>(is_valid_->host.data);
        for (int64_t t = 0; t < on_.plan().size().query_tokens; ++t)
            if (!valid[t]) on_.limit_rows(t, 0);
        const int64_t per_call = on_.backend().prefill_requests_per_call;
        on_.divide(split.decode_tokens, split.decodes, per_call ? per_call : on_.args().max_requests);
    }
    void add_to_job(MetadataJob& job) const override {
        job.valid_alone = true;
        job.window_decode_lens = ints(decode_lens_->device);
        job.window_prefill_lens = ints(prefill_lens_->device);
        job.window_prefill_rows = ints(prefill_rows_->device);
        job.prefill_seq_lens = ints(prefill_seq_lens_->device);
        job.prefill_gather_lens = ints(prefill_gather_lens_->device);
    }
    void add_to(StepFields& step) const override {
        show_pages(step.window.group.cache, on_.batch().window);
        step.window.group.block_table = on_.kernel_table(&PlanBatch::window);
        step.window.group.slots = on_.plan_field(&PlanFields::window_slot).device;
        step.window.rows = on_.plan_field(&PlanFields::window_rows).device;
        step.window.lengths = on_.plan_field(&PlanFields::window_len).device;
    }

private:
    void fill_rows(const BatchSplit& split) {
        const Field rows = on_.plan_field(&PlanFields::window_rows),
                    lengths = on_.plan_field(&PlanFields::window_len);
        const int64_t first = split.decode_tokens, prefill = split.prefill_tokens, window = on_.args().window;
        copy_lengths(lengths, *decode_lens_, written_);
        std::copy_n(ints(rows) + first * window, prefill * window, ints(*prefill_rows_));
        std::copy_n(ints(lengths) + first, prefill, ints(*prefill_lens_));
    }
    void fill_prefills(const PlanBatch& batch, const BatchSplit& split) {
        const int32_t *starts = ints(batch.query_start_loc), *lengths = ints(batch.seq_lens);
        for (int64_t i = 0; i < split.prefills; ++i) {
            const int64_t r = split.decodes + i;
            const int32_t query = starts[r + 1] - starts[r], prefix = lengths[r] - query;
            ints(*prefill_seq_lens_)[i] = lengths[r];
            ints(*prefill_gather_lens_)[i] = query + std::min(prefix, on_.args().window - 1);
        }
    }

    int32_t *num_decodes_, *num_prefills_, *num_decode_tokens_, *num_prefill_tokens_;
    int32_t *block_size_, *window_size_;
    Field *table_, *slots_, *token_to_req_, *is_valid_, *decode_rows_, *decode_lens_;
    Field *prefill_rows_, *prefill_lens_, *prefill_seq_lens_, *prefill_gather_lens_;
    int64_t written_ = 0;
};

class EntryFields final : public FieldSet {
public:
    explicit EntryFields(Metadata& metadata)
        : FieldSet(metadata), lists_all_(metadata.config().kind() == LayerKind::heavily_compressed) {
        slot_mapping_ = &on_.shown("slot_mapping");
        block_table_ = &on_.shown("block_table");
        req_id_per_token_ = &on_.shown("req_id_per_token");
        block_size_ = &on_.number("block_size");
        topk_tokens_ = &on_.number("topk_tokens");
        if (!lists_all_) return;
        const int64_t tokens = on_.args().max_tokens, columns = on_.plan().fields().entry_rows.shape[1];
        decode_rows_ = &on_.shown("c128a_global_decode_topk_indices");
        decode_lens_ = &on_.own("c128a_decode_topk_lens", SMLA_I32, {tokens}, 0);
        prefill_entries_ = &on_.own("c128a_prefill_topk_indices", SMLA_I32, {tokens, columns}, -1,
                                    Metadata::FieldIs::made_there);
        listed_.resize(size_t(tokens));
    }
    void begin() override {
        *block_size_ = on_.args().page_tokens;
        *topk_tokens_ = on_.args().topk;
    }
    void shape(const PlanBatch& batch) override {
        *slot_mapping_ = on_.plan_field(&PlanFields::compressed_slot);
        *block_table_ = on_.table(&PlanBatch::compressed);
        *req_id_per_token_ = on_.plan_field(&PlanFields::request_of_token);
        *block_size_ = batch.compressed.page_tokens * on_.args().ratio;
        if (!lists_all_) return;
        const int64_t decode_tokens = on_.split().decode_tokens;
        *decode_rows_ = decode_rows(on_.plan_field(&PlanFields::entry_rows), decode_tokens);
        decode_lens_->resize(decode_tokens);
        prefill_entries_->resize(on_.split().prefill_tokens);
    }
    void fill(const PlanBatch&) override {
        if (!lists_all_) return;
        copy_lengths(on_.plan_field(&PlanFields::entry_len), *decode_lens_, written_);
        list_prefill_entries();
    }
    void add_to_job(MetadataJob& job) const override {
        if (!lists_all_) return;
        job.entry_columns = prefill_entries_->host.shape[1];
        job.entry_decode_lens = ints(decode_lens_->device);
        job.entry_prefill_rows = ints(prefill_entries_->device);
    }
    void build_on_gpu(Device& device, smla_stream stream) override {
        if (!lists_all_) return;
        const Tensor& rows = prefill_entries_->device;
        const Field visible =
            slice(on_.plan_field(&PlanFields::entry_len), 0, on_.split().decode_tokens, on_.tokens());
        device.count_up(ints(visible.device), ints(rows), rows.shape[0], rows.shape[1], stream);
    }
    void add_to(StepFields& step) const override {
        show_pages(step.entries.group.cache, on_.batch().compressed);
        step.entries.group.block_table = on_.kernel_table(&PlanBatch::compressed);
        step.entries.rows = on_.plan_field(&PlanFields::entry_rows).device;
        step.entries.lengths = on_.plan_field(&PlanFields::entry_len).device;
    }

private:
    // Lists the entries 0, 1, ... that each token sees. Writes only what differs from the last build.
    void list_prefill_entries() {
        const int64_t columns = prefill_entries_->host.shape[1], first = on_.split().decode_tokens;
        for (int64_t i = 0; i < on_.split().prefill_tokens; ++i) {
            int32_t* row = ints(*prefill_entries_) + i * columns;
            int32_t& listed = listed_[size_t(i)];
            const int32_t visible = ints(on_.plan().fields().entry_len)[first + i];
            if (visible > listed) std::iota(row + listed, row + visible, listed);
            else std::fill(row + visible, row + listed, -1);
            listed = visible;
        }
    }

    bool lists_all_;  // ratio 128
    Field *slot_mapping_, *block_table_, *req_id_per_token_;
    int32_t *block_size_, *topk_tokens_;
    Field *decode_rows_ = nullptr, *decode_lens_ = nullptr, *prefill_entries_ = nullptr;
    std::vector<int32_t> listed_;  // entries in each row of prefill_entries_
    int64_t written_ = 0;
};

class CallLengthFields final : public FieldSet {
public:
    explicit CallLengthFields(Metadata& metadata) : FieldSet(metadata) {
        decode_cu_ = &on_.shown("decode_cum_seq_lens_q");
        prefill_cu_ = &on_.own("prefill_cum_seq_lens_q", SMLA_I32, {int64_t(on_.args().max_requests) + 1}, 0);
        decode_max_ = &on_.number("decode_max_q_len");
        prefill_max_ = &on_.number("prefill_max_q_len");
    }
    void shape(const PlanBatch&) override {
        const BatchSplit& split = on_.split();
        *decode_cu_ = slice(on_.query_start_loc(), 0, 0, split.decodes + 1);
        prefill_cu_->resize(split.prefills + 1);
        // fill() replaces these upper bounds if the host can read the batch.
        const int64_t longest = on_.longest_query(), threshold = on_.plan().threshold();
        *decode_max_ = int32_t(split.decodes ? std::min(longest, threshold) : 0);
        *prefill_max_ = int32_t(split.prefills ? longest : 0);
    }
    void fill(const PlanBatch& batch) override {
        const int64_t decodes = on_.split().decodes, requests = on_.requests();
        const int32_t* starts = ints(batch.query_start_loc);
        for (int64_t r = decodes; r <= requests; ++r)
            ints(*prefill_cu_)[r - decodes] = starts[r] - starts[decodes];
        const auto longest = [&](int64_t begin, int64_t end) {
            int32_t most = 0;
            for (int64_t r = begin; r < end; ++r) most = std::max(most, starts[r + 1] - starts[r]);
            return most;
        };
        *decode_max_ = longest(0, decodes);
        *prefill_max_ = longest(decodes, requests);
        if (limits()) limit_prefill_rows();
    }
    void add_to_job(MetadataJob& job) const override {
        job.prefill_cu = ints(prefill_cu_->device);
        job.limits_prefill_rows = limits();
    }

private:
    bool limits() const { return reads_selection(on_.config().kind()); }
    // Limits a prefill token to its first columns, one per visible entry. Published kernels attend to all
    // valid entries of a list only for decode tokens.
    void limit_prefill_rows() {
        for (int64_t t = on_.split().decode_tokens; t < on_.plan().size().query_tokens; ++t)
            on_.limit_rows(t, ints(on_.plan().fields().visible_entries)[t]);
    }

    Field *decode_cu_, *prefill_cu_;
    int32_t *decode_max_, *prefill_max_;
};

}  // namespace

std::unique_ptr<FieldSet> window_fields(Metadata& metadata) {
    return std::make_unique<WindowFields>(metadata);
}
std::unique_ptr<FieldSet> entry_fields(Metadata& metadata) {
    if (metadata.config().kind() == LayerKind::sliding) return nullptr;
    return std::make_unique<EntryFields>(metadata);
}
std::unique_ptr<FieldSet> call_length_fields(Metadata& metadata) {
    return std::make_unique<CallLengthFields>(metadata);
}

}  // namespace smla
