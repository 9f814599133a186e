// Metadata fields of the V3.2 and GLM-5.x backends, which have one cache.
#include "backends/maps/rows.h"
#include "backends/metadata/sets.h"
#include "plan/split.h"

#include <algorithm>

namespace smla {

namespace {

Field no_table() {
    const Tensor none = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {0, 0});
    return {none, none};
}

class CacheFields final : public FieldSet {
public:
    explicit CacheFields(Metadata& metadata) : FieldSet(metadata) {
        block_size_ = &on_.number("block_size");
        topk_tokens_ = &on_.number("topk_tokens");
        req_id_per_token_ = &on_.shown("req_id_per_token");
        slot_mapping_ = &on_.shown("slot_mapping");
        block_table_ = &on_.shown("block_table");
    }
    void begin() override {
        *block_size_ = on_.args().page_tokens;
        *topk_tokens_ = on_.args().topk;
        show_plan();
        *block_table_ = no_table();
    }
    void shape(const PlanBatch& batch) override {
        *block_size_ = batch.primary.page_tokens;
        show_plan();
        *block_table_ = on_.table(&PlanBatch::primary);
    }
    void add_to(StepFields& step) const override {
        step.kv.block_table = on_.kernel_table(&PlanBatch::primary);
        step.kv.slots = on_.plan_field(&PlanFields::primary_slot).device;
        show_pages(step.kv.cache, on_.batch().primary);
    }

private:
    void show_plan() {
        *req_id_per_token_ = on_.plan_field(&PlanFields::request_of_token);
        *slot_mapping_ = on_.plan_field(&PlanFields::primary_slot);
    }
    int32_t *block_size_, *topk_tokens_;
    Field *req_id_per_token_, *slot_mapping_, *block_table_;
};

class LimitFields final : public FieldSet {
public:
    explicit LimitFields(Metadata& metadata) : FieldSet(metadata) {
        on_.own("topk_tokens_tensor", SMLA_I32, {1}, on_.args().topk);
        on_.own("max_model_len_tensor", SMLA_I32, {1}, on_.args().max_seq_len);
    }
    void shape(const PlanBatch&) override {}
};

class Fp8ScheduleFields final : public FieldSet {
public:
    explicit Fp8ScheduleFields(Metadata& metadata)
        : FieldSet(metadata),
          columns_(metadata.config().list_columns()),
          sm_100_(major_capability(metadata.args().device) == 10) {
        schedule_ =
            &on_.own("fp8_extra_metadata.scheduler_metadata", SMLA_I32, {parts(1), kScheduleColumns}, 0);
        num_splits_ = &on_.own("fp8_extra_metadata.num_splits", SMLA_I32, {2}, 0);
        on_.own("fp8_extra_metadata.dummy_block_table", SMLA_I32, {1, 1}, 0);
        on_.own("fp8_extra_metadata.cache_lens", SMLA_I32, {1}, on_.args().max_seq_len);
    }
    // All tokens form one request, because one request per token exceeds the kernel's schedule.
    void shape(const PlanBatch&) override { schedule_->resize(parts(on_.tokens())); }
    void fill(const PlanBatch&) override {
        smla_decode_schedule_args schedule{};
        schedule.lens = make_tensor(&columns_, SMLA_I32, {1});
        schedule.schedule = schedule_->host;
        schedule.splits = num_splits_->host;
        decode_schedule(schedule);
    }
    void add_to_job(MetadataJob& job) const override {
        job.schedule = ints(schedule_->device);
        job.schedule_splits = ints(num_splits_->device);
        job.schedule_parts = schedule_->host.shape[0];
        job.schedule_blocks = ceil_div(columns_, kScheduleBlockRows);
    }

private:
    int64_t parts(int64_t tokens) const {
        return flash_mla_parts(on_.args().device.multiprocessors, on_.args().heads,
                               std::max<int64_t>(tokens, 1), sm_100_);
    }
    int32_t columns_;
    bool sm_100_;
    Field *schedule_, *num_splits_;
};

class PrefillContextFields final : public FieldSet {
public:
    explicit PrefillContextFields(Metadata& metadata) : FieldSet(metadata) {
        const BackendArgs& args = on_.args();
        table_ = &on_.shown("prefill.block_table");
        has_context_ = &on_.number("prefill.has_context");
        context_lens_ = &on_.own("prefill.context_lens", SMLA_I32, {args.max_requests}, 0);
        token_context_ = &on_.own("prefill_context_lengths", SMLA_I32, {args.max_tokens}, 0);
        new_starts_ = &on_.own("prefill_new_k_start_locs", SMLA_I32, {int64_t(args.max_requests) + 1}, 0);
    }
    void begin() override { *table_ = no_table(); }
    void shape(const PlanBatch&) override {
        const BatchSplit& split = on_.split();
        *table_ = slice(on_.table(&PlanBatch::primary), 0, split.decodes, on_.requests());
        context_lens_->resize(split.prefills);
        token_context_->resize(split.prefill_tokens);
        new_starts_->resize(split.prefills + 1);
        // Any prefill of a GPU batch sets this flag; for a host batch, fill() checks the lengths.
        *has_context_ = split.prefills > 0;
    }
    void fill(const PlanBatch& batch) override {
        const BatchSplit& split = on_.split();
        const int64_t decodes = split.decodes, first = split.decode_tokens;
        const int32_t *starts = ints(batch.query_start_loc), *lengths = ints(batch.seq_lens);
        *has_context_ = 0;
        ints(*new_starts_)[0] = 0;
        for (int64_t i = 0; i < split.prefills; ++i) {
            const int64_t r = decodes + i;
            const int32_t context = lengths[r] - (starts[r + 1] - starts[r]);
            ints(*context_lens_)[i] = context;
            ints(*new_starts_)[i + 1] = starts[r + 1] - int32_t(first);
            if (context > 0) *has_context_ = 1;
            std::fill(ints(*token_context_) + starts[r] - first,
                      ints(*token_context_) + starts[r + 1] - first, context);
        }
    }
    void add_to_job(MetadataJob& job) const override {
        job.context_lens = ints(context_lens_->device);
        job.new_starts = ints(new_starts_->device);
        job.token_context = ints(token_context_->device);
    }

private:
    Field *table_, *context_lens_, *token_context_, *new_starts_;
    int32_t* has_context_;
};

class KvSplitFields final : public FieldSet {
public:
    explicit KvSplitFields(Metadata& metadata) : FieldSet(metadata) {
        on_.own("dummy_block_table", SMLA_I32, {1, 1}, 0);
        splits_ = &on_.number("num_kv_splits");
    }
    void shape(const PlanBatch&) override {
        const BackendArgs& args = on_.args();
        *splits_ = int32_t(triton_split_count(on_.tokens(), args.heads, on_.config().list_columns(),
                                              args.device.multiprocessors));
    }

private:
    int32_t* splits_;
};

}  // namespace

std::unique_ptr<FieldSet> cache_fields(Metadata& metadata) { return std::make_unique<CacheFields>(metadata); }
std::unique_ptr<FieldSet> limit_fields(Metadata& metadata) { return std::make_unique<LimitFields>(metadata); }
std::unique_ptr<FieldSet> fp8_schedule_fields(Metadata& metadata) {
    if (metadata.format() != SMLA_FP8_656 && metadata.format() != SMLA_FP8_528) return nullptr;
    return std::make_unique<Fp8ScheduleFields>(metadata);
}
std::unique_ptr<FieldSet> prefill_context_fields(Metadata& metadata) {
    return std::make_unique<PrefillContextFields>(metadata);
}
std::unique_ptr<FieldSet> kv_split_fields(Metadata& metadata) {
    return std::make_unique<KvSplitFields>(metadata);
}

}  // namespace smla
