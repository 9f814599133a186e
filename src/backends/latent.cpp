#include "backends/latent.h"

namespace smla {

namespace {

PlanMaxima latent_maxima(const BackendArgs& args) {
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = SMLA_PLAN_PRIMARY | (args.plan_groups & SMLA_PLAN_INDEX);
    maxima.max_tokens = args.max_tokens;
    maxima.max_requests = args.max_requests;
    maxima.max_seq_len = args.max_seq_len;
    maxima.speculative_tokens = args.speculative_tokens;
    maxima.topk = args.topk;
    maxima.heads = args.heads;
    maxima.workers = args.device.multiprocessors;
    maxima.batch_invariant = args.batch_invariant;
    maxima.allocator = args.allocator;
    return maxima;
}

struct Shape {
    int64_t tokens, heads, latent, rope, nope;
    bool absorbed;  // q is [N,H,latent + rope], or a pair of both
};

Shape check_latent(const BackendInstance& on, const StepFields& step, const ForwardArgs& args) {
    const BackendArgs& model = on.config.args;
    Shape shape{step.tokens,    model.heads,    model.kv_lora_rank,
                model.rope_dim, model.nope_dim, !present(args.w_uk_t)};
    const bool pair = present(args.q_pe);
    SMLA_CHECK(!pair || shape.absorbed, "args.w_uk_t", "given", "absent: q of a pair is absorbed");
    const int64_t width = pair             ? shape.latent
                          : shape.absorbed ? shape.latent + shape.rope
                                           : shape.nope + shape.rope;
    check_tensor("args.q", args.q, kFloats, {kAny, shape.heads, width});
    const int64_t rows = args.q.shape[0];
    if (pair) check_tensor("args.q_pe", args.q_pe, kFloats, {rows, shape.heads, shape.rope});
    SMLA_CHECK(rows >= shape.tokens, "args.q.shape[0]", rows, text(shape.tokens, " tokens or more"));
    check_tensor("args.topk_indices", args.topk_indices, kInt32, {kAny, kAny});
    SMLA_CHECK(args.topk_indices.shape[0] >= shape.tokens, "args.topk_indices.shape[0]",
               args.topk_indices.shape[0], text(shape.tokens, " tokens or more"));
    if (!shape.absorbed)
        check_tensor("args.w_uk_t", args.w_uk_t, kFloats, {shape.heads, shape.nope, shape.latent});
    const bool up = present(args.w_uv);
    if (up) check_tensor("args.w_uv", args.w_uv, kFloats, {shape.heads, shape.latent, model.v_head_dim});
    const int64_t value = up ? model.v_head_dim : shape.latent;
    if (args.out.ndim == 2) check_tensor("args.out", args.out, kFloats, {kAny, shape.heads * value});
    else check_tensor("args.out", args.out, kFloats, {kAny, shape.heads, value});
    check_rows("args.out", args.out);
    SMLA_CHECK(args.out.shape[0] >= shape.tokens, "args.out.shape[0]", args.out.shape[0],
               text(shape.tokens, " tokens or more"));
    if (check_optional("args.k_c", args.k_c, kFloats, {kAny, shape.latent})) {
        SMLA_CHECK(args.k_c.shape[0] >= shape.tokens, "args.k_c.shape[0]", args.k_c.shape[0],
                   text(shape.tokens, " tokens or more"));
        const int64_t keys = args.k_c.shape[0];
        if (shape.rope && args.k_pe.ndim == 3)
            check_tensor("args.k_pe", args.k_pe, kFloats, {keys, 1, shape.rope});
        else if (shape.rope) check_tensor("args.k_pe", args.k_pe, kFloats, {keys, shape.rope});
    }
    SMLA_CHECK(args.kv_cache.format == on.format, "args.kv_cache.format",
               find_format(args.kv_cache.format) ? find_format(args.kv_cache.format)->name : "unknown",
               find_format(on.format)->name);
    SMLA_CHECK(args.kv_cache.page_tokens == step.page_tokens, "args.kv_cache.page_tokens",
               args.kv_cache.page_tokens, text(step.page_tokens, ", as the metadata was built"));
    SMLA_CHECK(!present(args.sink), "args.sink", describe(args.sink), "absent: V3.2 has no sinks");
    SMLA_CHECK(args.swa_cache.format == SMLA_FORMAT_NONE, "args.swa_cache.format", args.swa_cache.format,
               "none: V3.2 has no window cache");
    return shape;
}

// q and q_pe as one [T,H,latent + rope]: a rotation by 0 copies.
Tensor joined(Runner& run, const BackendInstance& on, const StepFields& step, const Shape& shape,
              const ForwardArgs& args) {
    const Tensor q =
        run.activation(on.config.args.dtype, {shape.tokens, shape.heads, shape.latent + shape.rope});
    const auto copy = [&](const Tensor& from, const Tensor& to) {
        const int64_t pairs = from.shape[2] / 2;
        run.run<Stage::rope>({.x = slice(from, 0, 0, shape.tokens),
                              .positions = step.batch.rope_position,
                              .frequencies = on.no_rotation(pairs),
                              .out = to});
    };
    copy(args.q, slice(q, 2, 0, shape.latent));
    copy(args.q_pe, slice(q, 2, shape.latent, shape.latent + shape.rope));
    return q;
}

}  // namespace

int32_t padded_to(int32_t heads, std::initializer_list<int32_t> sizes) {
    for (const int32_t size : sizes)
        if (heads <= size) return size;
    return heads;
}

LatentMetadata::LatentMetadata(const BackendInstance& on, bool complete)
    : Metadata(on, latent_maxima(on.config.args)), page_tokens_(on.config.args.page_tokens) {
    block_size_ = &number("block_size");
    topk_tokens_ = &number("topk_tokens");
    req_id_per_token_ = &shown("req_id_per_token");
    slot_mapping_ = &shown("slot_mapping");
    block_table_ = &shown("block_table");
    if (complete) finish();
}

void LatentMetadata::finish() {
    Metadata::finish();
    *block_size_ = page_tokens_;
    *topk_tokens_ = args().topk;
    *req_id_per_token_ = plan().fields().request_of_token;
    *slot_mapping_ = plan().fields().primary_slot;
    *block_table_ = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {0, 0});
}

void LatentMetadata::fill(const PlanBatch& batch) {
    *block_size_ = batch.primary.page_tokens;
    *req_id_per_token_ = plan().fields().request_of_token;
    *slot_mapping_ = plan().fields().primary_slot;
    *block_table_ = batch.primary.block_table;
}

StepFields LatentMetadata::host_step() const {
    StepFields out = Metadata::host_step();
    out.slots = plan().fields().primary_slot;
    out.block_table = *block_table_;
    out.page_tokens = *block_size_;
    out.page_rows = batch().primary.page_rows;
    return out;
}

void forward_latent(Runner& run, const BackendInstance& on, const Metadata* metadata,
                    const ForwardArgs& args) {
    StepFields fields = metadata ? metadata->step() : largest_step(on, args.q.shape[0]);
    if (!metadata) fields.page_tokens = args.kv_cache.page_tokens;
    const Shape shape = check_latent(on, fields, args);
    SMLA_CHECK(present(fields.block_table), "batch.primary.block_table", "absent",
               "the table: rows are looked up in it");
    const auto cut = [&](const Tensor& tensor) { return slice(tensor, 0, 0, shape.tokens); };
    DsaStep step{};
    step.q = present(args.q_pe) && shape.rope ? joined(run, on, fields, shape, args) : cut(args.q);
    step.frequencies = on.no_rotation(shape.rope / 2);  // rotated already
    if (present(args.k_c)) {                            // a cache without pages takes nothing
        step.latent = cut(args.k_c);
        if (shape.rope) step.k_rope = reshape_rows(cut(args.k_pe), {shape.rope});
    }
    if (!shape.absorbed) step.w_uk = transposed(args.w_uk_t);
    if (present(args.w_uv)) step.w_uv = transposed(args.w_uv);
    step.forced_topk = cut(args.topk_indices);
    step.row_lengths = fields.row_limit;
    step.query_dtype = on.config.args.dtype;
    step.softmax_scale = on.config.args.softmax_scale;
    step.kv = {args.kv_cache, fields.block_table, fields.slots};
    step.kv.cache.page_rows = fields.page_rows ? fields.page_rows : args.kv_cache.page_rows;
    const int64_t value = args.out.ndim == 3 ? args.out.shape[2] : args.out.shape[1] / shape.heads;
    step.out = reshape_rows(cut(args.out), {shape.heads, value});
    if (present(args.lse)) step.lse = cut(args.lse);
    run_dsa_step(run, fields.batch, step);
}

}  // namespace smla
