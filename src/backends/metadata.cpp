#include "backends/metadata.h"

#include "backends/maps/prefill_chunks.h"
#include "backends/step.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace smla {

namespace {

void* default_allocate(void*, size_t bytes, size_t alignment) {
    return std::aligned_alloc(alignment, round_up(bytes, alignment));
}
void default_free(void*, void* memory) { std::free(memory); }

int64_t bytes_of(const Tensor& tensor) { return element_count(tensor) * dtype_bits(tensor.dtype) / 8; }

// vLLM gathers at most this many times the longest request into one chunk of indexer prefill.
constexpr int64_t kGatheredRequests = 40;

}  // namespace

Metadata::Metadata(const BackendInstance& on, const PlanMaxima& maxima)
    : backend_(on.backend), args_(on.config.args), plan_(maxima), context_(on.context) {
    allocator_ =
        args_.allocator.alloc ? args_.allocator : smla_allocator{default_allocate, default_free, nullptr};
    num_reqs_ = &number("num_reqs");
    num_actual_tokens_ = &number("num_actual_tokens");
    max_query_len_ = &number("max_query_len");
    max_seq_len_ = &number("max_seq_len");
    query_start_loc_ = &own("query_start_loc", SMLA_I32, {int64_t(args_.max_requests) + 1}, 0);
    seq_lens_ = &own("seq_lens", SMLA_I32, {args_.max_requests}, 0);
    row_limit_ = &own("row_limit", SMLA_I32, {args_.max_tokens}, 0);
    if (maxima.groups & SMLA_PLAN_INDEX)
        chunks_ = &own("indexer.prefill_chunks", SMLA_I32,
                       {int64_t(args_.max_tokens) + args_.max_requests, kChunkColumns}, 0);
    parts_.resize(size_t(args_.max_requests) + 3);
}

Metadata::~Metadata() {
    if (memory_) allocator_.free(allocator_.user, memory_);
}

Tensor& Metadata::own(const char* name, smla_dtype dtype, std::initializer_list<int64_t> largest,
                      int32_t initial, FieldIs how) {
    Field& field = fields_.emplace_back(Field{name});
    field.how = how;
    field.tensor = make_tensor(static_cast<void*>(nullptr), dtype, largest);
    field.bytes = bytes_of(field.tensor);
    field.initial = initial;
    return field.tensor;
}

int32_t& Metadata::number(const char* name) {
    int32_t& value = numbers_.emplace_back(0);
    Field& field = fields_.emplace_back(Field{name});
    field.tensor = make_tensor(&value, SMLA_I32, {1});
    field.number = true;
    return value;
}

Tensor& Metadata::shown(const char* name) { return fields_.emplace_back(Field{name}).tensor; }

void Metadata::finish() {
    for (const char* name : plan_.names()) {
        plan_names_.push_back(text("plan.", name));
        fields_.emplace_back(Field{plan_names_.back().c_str()}).other = plan_.find(name);
    }
    size_t bytes = 0;
    for (const Field& field : fields_) bytes += round_up(size_t(field.bytes), kCacheLine);
    memory_ = allocator_.alloc(allocator_.user, std::max(bytes, kCacheLine), kCacheLine);
    if (!memory_) fail(SMLA_OUT_OF_MEMORY, "args.allocator", text("null for ", bytes, " bytes"), "memory");
    char* at = static_cast<char*>(memory_);
    for (Field& field : fields_) {
        names_.push_back(field.name);
        if (!field.bytes) continue;
        field.tensor.data = at;
        at += round_up(size_t(field.bytes), kCacheLine);
        std::fill_n(ints(field.tensor), field.bytes / int64_t(sizeof(int32_t)), field.initial);
    }
    if (context_ && context_->device().type() != SMLA_CPU)
        gpu_ = std::make_unique<GpuMetadata>(*context_, args_, plan_,
                                             make_tensor(memory_, SMLA_U8, {int64_t(bytes)}));
}

const Tensor* Metadata::find(std::string_view name) const {
    for (const Field& field : fields_)
        if (name == field.name) {
            const Tensor& host = field.other ? *field.other : field.tensor;
            if (!gpu_ || field.number) return &host;
            field.there = gpu_->view(host);
            return &field.there;
        }
    return nullptr;
}

void Metadata::check_for(const BackendInstance& on) const {
    SMLA_CHECK(backend_ == on.backend, "args.metadata", backend_->name, text("of ", on.backend->name));
    const BackendArgs& mine = on.config.args;
    SMLA_CHECK(args_.ratio == mine.ratio && args_.window == mine.window && args_.heads == mine.heads,
               "args.metadata",
               text("of ratio ", args_.ratio, ", window ", args_.window, ", ", args_.heads, " heads"),
               text("of ratio ", mine.ratio, ", window ", mine.window, ", ", mine.heads, " heads"));
    SMLA_CHECK(built_, "args.metadata", "never built", "built for this step");
}

void Metadata::build(const PlanBatch& batch) {
    if (gpu_) gpu_->check(batch);
    plan_.build(batch);  // checks everything before it writes
    batch_ = batch;
    built_ = true;
    copy_lengths(batch);
    divide(0, requests(), 1);
    if (chunks_) {
        smla_prefill_chunks_args chunking{};
        chunking.ratio = plan_.maxima().ratio;
        chunking.max_rows = kGatheredRequests * args_.max_seq_len / std::max(chunking.ratio, 1);
        chunking.max_logits_bytes = args_.max_logits_bytes;
        chunking.first_request = int32_t(split().decodes);
        chunking.query_start_loc = batch.query_start_loc;
        chunking.seq_lens = batch.seq_lens;
        chunking.chunks = *chunks_;
        chunking.chunks.shape[0] = int64_t(args_.max_tokens) + args_.max_requests;
        prefill_chunks(chunking);
        chunks_->shape[0] = chunking.count;
    }
    fill(batch);
    if (gpu_) send(batch);
}

// Behind what a field shows now, the host has reset what it showed before.
void Metadata::send(const PlanBatch& batch) {
    gpu_->begin();
    for (Field& field : fields_) {
        if (!field.bytes || field.how == FieldIs::made_there) continue;
        const size_t now = size_t(bytes_of(field.tensor));
        gpu_->put(field.tensor, std::max(now, field.sent));
        field.sent = now;
    }
    gpu_->finish(batch, *query_start_loc_, *seq_lens_);
    fill_there(*gpu_, batch.stream);
}

void Metadata::copy_lengths(const PlanBatch& batch) {
    const int64_t n = requests();
    query_start_loc_->shape[0] = n + 1;
    seq_lens_->shape[0] = n;
    row_limit_->shape[0] = tokens();
    int32_t longest_query = 0, longest = 0, *starts = ints(*query_start_loc_), *lengths = ints(*seq_lens_);
    std::copy_n(ints(batch.query_start_loc), n + 1, starts);
    std::copy_n(ints(batch.seq_lens), n, lengths);
    for (int64_t r = 0; r < n; ++r) {
        longest_query = std::max(longest_query, starts[r + 1] - starts[r]);
        longest = std::max(longest, lengths[r]);
    }
    *num_reqs_ = int32_t(n);
    *num_actual_tokens_ = int32_t(tokens());
    *max_query_len_ = longest_query;
    *max_seq_len_ = longest;
    const int64_t query_tokens = plan_.size().query_tokens;
    std::fill_n(ints(*row_limit_), query_tokens, std::numeric_limits<int32_t>::max());
    if (limited_ > query_tokens) std::fill_n(ints(*row_limit_) + query_tokens, limited_ - query_tokens, 0);
    limited_ = query_tokens;
}

void Metadata::limit_rows(int64_t token, int32_t most) { ints(*row_limit_)[token] = most; }

void Metadata::divide(int64_t decode_tokens, int64_t first_prefill, int64_t requests_per_part) {
    part_count_ = 0;
    parts_[part_count_++] = 0;
    const auto end = [&](int64_t token) {
        if (token > parts_[part_count_ - 1]) parts_[part_count_++] = int32_t(token);
    };
    end(decode_tokens);
    for (int64_t r = first_prefill; r < requests(); r += requests_per_part)
        end(ints(*query_start_loc_)[std::min(r + requests_per_part, requests())]);
    // padding goes with the last part
    if (part_count_ > 1)
        parts_[part_count_ - 1] = int32_t(std::max<int64_t>(parts_[part_count_ - 1], tokens()));
    else end(tokens());
}

StepFields Metadata::step() const {
    StepFields out = host_step();
    if (!gpu_) return out;
    for (Tensor* each :
         {&out.batch.request_of_token, &out.batch.position, &out.batch.rope_position,
          &out.batch.visible_tokens, &out.slots, &out.row_limit, &out.block_table, &out.window_table,
          &out.window_rows, &out.window_lengths, &out.entry_rows, &out.entry_lengths})
        *each = gpu_->kernel_view(*each);
    return out;
}

StepFields Metadata::host_step() const {
    const PlanFields& fields = plan_.fields();
    StepFields out;
    out.tokens = tokens();
    out.batch.request_of_token = fields.request_of_token;
    out.batch.position = fields.position;
    out.batch.rope_position = fields.rope_position;
    out.batch.visible_tokens = fields.visible_tokens;
    out.batch.parts = {parts_.data(), part_count_};
    out.row_limit = *row_limit_;
    return out;
}

StepFields largest_step(const BackendInstance& on, int64_t tokens) {
    const BackendArgs& args = on.config.args;
    const auto absent = [](smla_dtype dtype, std::initializer_list<int64_t> shape) {
        return make_tensor(static_cast<void*>(nullptr), dtype, shape);
    };
    StepFields out;
    out.tokens = tokens;
    const Tensor one = absent(SMLA_I32, {tokens});
    out.batch.request_of_token = out.batch.position = out.batch.rope_position = out.batch.visible_tokens =
        one;
    out.row_limit = out.window_lengths = one;
    out.slots = absent(SMLA_I64, {tokens});
    out.block_table = absent(SMLA_I32, {args.max_requests, args.max_seq_len});
    out.window_table = out.block_table;
    out.page_tokens = args.page_tokens;
    if (!on.config.hybrid()) return out;
    out.window_rows = absent(SMLA_I32, {tokens, args.window});
    if (args.ratio == 0) return out;
    out.entry_lengths = one;
    out.page_tokens = args.page_tokens / args.ratio;
    PlanMaxima maxima{};
    maxima.ratio = args.ratio;
    maxima.max_seq_len = args.max_seq_len;
    if (args.ratio != 4) out.entry_rows = absent(SMLA_I32, {tokens, entry_columns(maxima)});
    return out;
}

}  // namespace smla
