#include "backends/metadata/metadata.h"

#include "backends/maps/rows.h"

#include <algorithm>
#include <limits>

namespace smla {

namespace {

size_t bytes_of(const Tensor& tensor) { return size_t(element_count(tensor) * dtype_bits(tensor.dtype) / 8); }

// Most keys in one chunk of vLLM's indexer prefill, in multiples of the longest request.
constexpr int64_t kGatheredRequests = 40;

// Returns the plan features that a family's metadata is computed from.
PlanMaxima plan_maxima(const BackendConfig& config) {
    const BackendArgs& args = config.args;
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.max_tokens = args.max_tokens;
    maxima.max_requests = args.max_requests;
    maxima.max_seq_len = args.max_seq_len;
    maxima.speculative_tokens = args.speculative_tokens;
    maxima.heads = args.heads;
    maxima.workers = args.device.multiprocessors;
    maxima.batch_invariant = args.batch_invariant;
    maxima.allocator = args.allocator;
    const LayerKind kind = config.kind();
    if (reads_selection(kind)) maxima.topk = config.list_columns();
    if (!config.hybrid()) {
        maxima.groups = SMLA_GROUP_PRIMARY | args.plan_groups;
        return maxima;
    }
    maxima.groups = SMLA_GROUP_WINDOW | args.plan_groups;
    if (kind != LayerKind::sliding) maxima.groups |= SMLA_GROUP_COMPRESSED;
    maxima.window = args.window;
    maxima.ratio = args.ratio;
    maxima.list_entries = kind == LayerKind::heavily_compressed;
    return maxima;
}

}  // namespace

Metadata::Metadata(const BackendInstance& on)
    : backend_(on.backend),
      config_(on.config),
      format_(on.format),
      context_(on.context),
      plan_(plan_maxima(on.config)),
      tables_(plan_.maxima(), on.config.args, on_gpu()),
      calls_(on.config.args.max_requests) {
    const BackendArgs& args = config_.args;
    allocator_ = or_malloc(args.allocator);
    num_reqs_ = &number("num_reqs");
    num_actual_tokens_ = &number("num_actual_tokens");
    max_query_len_ = &number("max_query_len");
    max_seq_len_ = &number("max_seq_len");
    query_start_loc_ = &own("query_start_loc", SMLA_I32, {int64_t(args.max_requests) + 1}, 0);
    seq_lens_ = &own("seq_lens", SMLA_I32, {args.max_requests}, 0);
    row_limit_ = &own("row_limit", SMLA_I32, {args.max_tokens}, 0);
    if (plan_.maxima().groups & SMLA_GROUP_INDEX)
        chunks_ = &own("indexer.prefill_chunks", SMLA_I32,
                       {int64_t(args.max_tokens) + args.max_requests, kChunkColumns}, 0);
    for (const MakeFieldSet make : backend_->fields)
        if (std::unique_ptr<FieldSet> set = make(*this)) sets_.push_back(std::move(set));
    declare_plan_fields();
    place_fields();
    for (const auto& set : sets_) set->begin();
}

Metadata::~Metadata() = default;

Field& Metadata::own(const char* name, smla_dtype dtype, std::initializer_list<int64_t> largest,
                     int32_t initial, FieldIs how) {
    Declared& declared = fields_.emplace_back(Declared{name});
    declared.how = how;
    declared.field.host = make_tensor(static_cast<void*>(nullptr), dtype, largest);
    declared.bytes = bytes_of(declared.field.host);
    declared.initial = initial;
    return declared.field;
}

int32_t& Metadata::number(const char* name) {
    int32_t& value = numbers_.emplace_back(0);
    Field& field = fields_.emplace_back(Declared{name}).field;
    field.host = field.device = make_tensor(&value, SMLA_I32, {1});
    return value;
}

Field& Metadata::shown(const char* name) { return fields_.emplace_back(Declared{name}).field; }

void Metadata::declare_plan_fields() {
    for (const FieldSpec& spec : kPlanFieldSpecs) {
        if (!present(plan_.fields().*spec.member)) continue;
        plan_names_.push_back(text("plan.", spec.name));
        fields_.emplace_back(Declared{plan_names_.back().c_str()}).of_plan = spec.member;
    }
    for (const Declared& declared : fields_) names_.push_back(declared.name);
}

// Allocates the memory of fields and tables, on the host and on the device.
void Metadata::place_fields() {
    size_t bytes = 0;
    for (const Declared& declared : fields_) bytes += round_up(declared.bytes, kCacheLine);
    const size_t table_bytes = on_gpu() ? 0 : tables_.bytes(),
                 all = std::max(bytes + table_bytes, kCacheLine);
    memory_ = {allocator_.alloc(allocator_.user, all, kCacheLine), FreeMemory{allocator_}};
    if (!memory_)
        fail(SMLA_OUT_OF_MEMORY, "args.allocator", text("null for ", all, " bytes"), "a pointer to memory");
    char* const begin = static_cast<char*>(memory_.get());
    size_t at = 0;
    for (Declared& declared : fields_) {
        if (!declared.bytes) continue;
        declared.field.host.data = begin + at;
        std::fill_n(ints(declared.field), declared.bytes / sizeof(int32_t), declared.initial);
        at += round_up(declared.bytes, kCacheLine);
    }
    const Tensor fields = make_tensor(begin, SMLA_U8, {int64_t(bytes)});
    if (on_gpu()) gpu_ = std::make_unique<GpuMetadata>(*context_, plan_, fields, tables_);
    else tables_.place(make_tensor(begin + bytes, SMLA_U8, {int64_t(table_bytes)}));
    for (Declared& declared : fields_) {
        Field& field = declared.field;
        if (declared.bytes)
            field.device =
                gpu_ ? gpu_->side_of(field.host, size_t(static_cast<char*>(field.host.data) - begin))
                     : field.host;
    }
    show_plan();
}

Field Metadata::plan_field(Tensor PlanFields::*member) const {
    if (built_there_) {
        const Tensor& field = gpu_->plan_there().fields().*member;
        return {field, field};
    }
    const Tensor& host = plan_.fields().*member;
    return {host, gpu_ ? gpu_->plan_field(member) : host};
}

Field Metadata::table(PlanGroup PlanBatch::*member) const {
    const Tensor& table = (batch_.*member).block_table;
    return {table, table};
}

Tensor Metadata::kernel_table(PlanGroup PlanBatch::*member) const {
    return gpu_ && !built_there_ ? tables_.whole(member) : (batch_.*member).block_table;
}

const Tensor* Metadata::find(std::string_view name) const {
    for (const Declared& declared : fields_) {
        if (name == declared.name) return &declared.field.device;
    }
    return nullptr;
}

void Metadata::check_for(const BackendInstance& on) const {
    SMLA_CHECK(backend_ == on.backend, "args.metadata", text("metadata of ", backend_->name),
               text("metadata of ", on.backend->name));
    const auto describe_layer = [](const BackendArgs& args) {
        return text("metadata for ratio ", args.ratio, ", window ", args.window, " and ", args.heads,
                    " heads");
    };
    const BackendArgs &own = config_.args, &wanted = on.config.args;
    SMLA_CHECK(own.ratio == wanted.ratio && own.window == wanted.window && own.heads == wanted.heads,
               "args.metadata", describe_layer(own), describe_layer(wanted));
    SMLA_CHECK(built_, "args.metadata", "metadata that was never built", "metadata built for this step");
}

void Metadata::build(const PlanBatch& batch) {
    if (gpu_ && batch.query_start_loc.device_type != SMLA_CPU) build_there(batch);
    else build_here(batch);
}

void Metadata::build_here(const PlanBatch& batch) {
    if (gpu_) gpu_->check(batch);
    tables_.check(batch);
    plan_.build(batch);  // checks the batch before it writes
    built_there_ = false;
    size_ = plan_.size();
    split_ = plan_.split();
    count_lengths(batch);
    tables_.take_shapes(batch);
    if (!gpu_) tables_.copy(batch, [](void* to, size_t) { return to; });
    shape(batch);
    fill_lengths(batch);
    if (chunks_) fill_chunks(batch);
    for (const auto& set : sets_) set->fill(batch);
    if (gpu_) send(batch);
}

namespace {

// Returns the sizes that the host knows of a GPU batch.
BatchSize told_size(const PlanMaxima& maxima, const PlanBatch& batch) {
    BatchSize out;
    out.requests = batch.seq_lens.ndim == 1 ? batch.seq_lens.shape[0] : 0;
    out.tokens = batch.tokens;
    out.query_tokens = batch.query_tokens ? batch.query_tokens : batch.tokens;
    out.longest = batch.max_seq_len ? batch.max_seq_len : maxima.max_seq_len;
    const auto within = [](const char* field, int64_t value, int64_t most) {
        SMLA_CHECK(value >= 0 && value <= most, field, value, text("0 to ", most));
    };
    SMLA_CHECK(
        batch.tokens >= 1, "batch.tokens", batch.tokens,
        text("1 to max_tokens (", maxima.max_tokens, "), because the host does not read query_start_loc"));
    within("batch.query_tokens", batch.query_tokens, batch.tokens);
    within("batch.decodes", batch.decodes, out.requests);
    within("batch.decode_tokens", batch.decode_tokens, out.query_tokens);
    within("batch.max_query_len", batch.max_query_len, out.query_tokens);
    within("batch.max_seq_len", batch.max_seq_len, maxima.max_seq_len);
    return out;
}

}  // namespace

// Kernels read the caller's tensors and tables without copies, so the stream may be capturing.
void Metadata::build_there(const PlanBatch& batch) {
    const BatchSize size = told_size(plan_.maxima(), batch);
    gpu_->build_plan(batch);  // checks the rest of the batch before it writes
    built_there_ = true;
    size_ = size;
    split_ = {.decodes = batch.decodes,
              .prefills = size.requests - batch.decodes,
              .decode_tokens = batch.decode_tokens,
              .prefill_tokens = size.query_tokens - batch.decode_tokens};
    *max_query_len_ = int32_t(batch.max_query_len ? batch.max_query_len : size.query_tokens);
    *max_seq_len_ = int32_t(size.longest);
    if (chunks_) chunks_->resize(0);                                    // the host does not read the lengths
    for (Declared& declared : fields_) declared.sent = declared.bytes;  // a later build sends all bytes
    shape(batch);
    gpu_->device().fill_metadata(job(batch, gpu_->plan_there()), batch.stream);
}

void Metadata::shape(const PlanBatch& batch) {
    for (const auto member : {&PlanBatch::primary, &PlanBatch::window, &PlanBatch::compressed}) {
        batch_.*member = batch.*member;
        (batch_.*member).slots = {};
        if (!built_there_) (batch_.*member).block_table = tables_.shown(member);
    }
    built_ = true;
    show_plan();
    *num_reqs_ = int32_t(requests());
    *num_actual_tokens_ = int32_t(tokens());
    query_start_loc_->resize(requests() + 1);
    seq_lens_->resize(requests());
    row_limit_->resize(tokens());
    divide(0, requests(), 1);  // one call; fields divide it further if the host reads the requests
    for (const auto& set : sets_) set->shape(batch);
}

MetadataJob Metadata::job(const PlanBatch& batch, const Plan& plan) const {
    MetadataJob out;
    out.tokens = tokens();
    out.requests = requests();
    out.max_tokens = plan.maxima().max_tokens;
    out.max_requests = plan.maxima().max_requests;
    out.decodes = split().decodes;
    out.decode_tokens = split().decode_tokens;
    out.max_seq_len = plan.maxima().max_seq_len;
    out.lengths = ints(batch.seq_lens);
    out.starts = plan.starts_in_step();
    const PlanFields& fields = plan.fields();
    out.is_valid = static_cast<const uint8_t*>(fields.is_valid.data);
    out.query_start_loc = ints(query_start_loc_->device);
    out.seq_lens = ints(seq_lens_->device);
    out.row_limit = ints(row_limit_->device);
    for (const auto& set : sets_) set->add_to_job(out);
    if (out.window_decode_lens) {
        out.window = plan.maxima().window;
        out.window_rows = ints(fields.window_rows);
        out.window_len = ints(fields.window_len);
    }
    out.visible_entries = ints(fields.visible_entries);
    out.entry_len = ints(fields.entry_len);
    return out;
}

// Sends changed bytes. If a field has become shorter, sends the bytes behind its end as well, because the
// host has reset lengths and limits there.
void Metadata::send(const PlanBatch& batch) {
    gpu_->begin();
    for (Declared& declared : fields_) {
        if (!declared.bytes || declared.how == FieldIs::made_there) continue;
        const size_t now = bytes_of(declared.field.host);
        gpu_->put(declared.field, std::max(now, declared.sent));
        declared.sent = now;
    }
    gpu_->finish(batch, *query_start_loc_, *seq_lens_);
    for (const auto& set : sets_) set->build_on_gpu(gpu_->device(), batch.stream);
}

void Metadata::show_plan() {
    for (Declared& declared : fields_)
        if (declared.of_plan) declared.field = plan_field(declared.of_plan);
}

void Metadata::count_lengths(const PlanBatch& batch) {
    const int32_t *starts = ints(batch.query_start_loc), *lengths = ints(batch.seq_lens);
    *max_query_len_ = *max_seq_len_ = 0;
    for (int64_t r = 0; r < requests(); ++r) {
        *max_query_len_ = std::max(*max_query_len_, starts[r + 1] - starts[r]);
        *max_seq_len_ = std::max(*max_seq_len_, lengths[r]);
    }
}

void Metadata::fill_lengths(const PlanBatch& batch) {
    std::copy_n(ints(batch.query_start_loc), requests() + 1, ints(*query_start_loc_));
    std::copy_n(ints(batch.seq_lens), requests(), ints(*seq_lens_));
    const int64_t query_tokens = plan_.size().query_tokens;
    std::fill_n(ints(*row_limit_), query_tokens, std::numeric_limits<int32_t>::max());
    if (limited_ > query_tokens) std::fill_n(ints(*row_limit_) + query_tokens, limited_ - query_tokens, 0);
    limited_ = query_tokens;
}

void Metadata::fill_chunks(const PlanBatch& batch) {
    const BackendArgs& args = config_.args;
    chunks_->resize(int64_t(args.max_tokens) + args.max_requests);
    smla_prefill_chunks_args chunking{};
    chunking.ratio = plan_.maxima().ratio;
    chunking.max_rows = kGatheredRequests * args.max_seq_len / std::max(chunking.ratio, 1);
    chunking.max_logits_bytes = args.max_logits_bytes;
    chunking.first_request = int32_t(split().decodes);
    chunking.query_start_loc = batch.query_start_loc;
    chunking.seq_lens = batch.seq_lens;
    chunking.chunks = chunks_->host;
    prefill_chunks(chunking);
    chunks_->resize(chunking.count);
}

void Metadata::limit_rows(int64_t token, int32_t most) { ints(*row_limit_)[token] = most; }

void Metadata::divide(int64_t decode_tokens, int64_t first_prefill, int64_t requests_per_call) {
    calls_.begin();
    calls_.end(decode_tokens);
    for (int64_t r = first_prefill; r < requests(); r += requests_per_call)
        calls_.end(ints(*query_start_loc_)[std::min(r + requests_per_call, requests())]);
    calls_.finish(tokens());
}

StepFields Metadata::step() const {
    StepFields out;
    out.tokens = tokens();
    out.batch.request_of_token = plan_field(&PlanFields::request_of_token).device;
    out.batch.position = plan_field(&PlanFields::position).device;
    out.batch.rope_position = plan_field(&PlanFields::rope_position).device;
    out.batch.visible_tokens = plan_field(&PlanFields::visible_tokens).device;
    out.batch.parts = calls_.ends();
    out.row_limit = row_limit_->device;
    for (const auto& set : sets_) set->add_to(out);
    return out;
}

StepFields largest_step(const BackendInstance& on, int64_t tokens) {
    const BackendArgs& args = on.config.args;
    const auto absent = [](smla_dtype dtype, std::initializer_list<int64_t> shape) {
        return make_tensor(static_cast<void*>(nullptr), dtype, shape);
    };
    StepFields out;
    out.tokens = tokens;
    const Tensor numbers = absent(SMLA_I32, {tokens});
    out.batch.request_of_token = out.batch.position = out.batch.rope_position = out.batch.visible_tokens =
        numbers;
    out.row_limit = numbers;
    CacheGroup group;
    group.slots = absent(SMLA_I64, {tokens});
    group.block_table = absent(SMLA_I32, {args.max_requests, args.max_seq_len});
    if (!on.config.hybrid()) {
        out.kv = group;
        return out;
    }
    out.window = {.group = group, .rows = absent(SMLA_I32, {tokens, args.window}), .lengths = numbers};
    if (on.config.kind() == LayerKind::sliding) return out;
    out.entries.group = group;
    out.entries.lengths = numbers;
    if (on.config.kind() == LayerKind::heavily_compressed)
        out.entries.rows = absent(SMLA_I32, {tokens, entry_columns(plan_maxima(on.config))});
    return out;
}

}  // namespace smla
