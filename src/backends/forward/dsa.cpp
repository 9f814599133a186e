// V3.2 and GLM-5.x: absorbs queries, writes keys, looks rows up, attends, projects up.
#include "backends/forward/forward.h"

namespace smla {

namespace {

struct Shape {
    int64_t tokens, heads, latent, rope, nope;
    bool absorbed;  // q is [N,H,latent + rope], or a pair: q [N,H,latent] and q_pe [N,H,rope]
};

Shape check_args(const BackendInstance& on, const StepFields& step, const ForwardArgs& args,
                 const CheckContext& context) {
    const BackendArgs& model = on.config.args;
    Shape shape{step.tokens,    model.heads,    model.kv_lora_rank,
                model.rope_dim, model.nope_dim, !present(args.w_uk_t)};
    const bool pair = present(args.q_pe);
    SMLA_CHECK(!pair || shape.absorbed, "args.w_uk_t", "given", "absent: q of a pair is absorbed");
    const int64_t width = pair             ? shape.latent
                          : shape.absorbed ? shape.latent + shape.rope
                                           : shape.nope + shape.rope;
    check_tensor("args.q", args.q, kFloats, {kAny, shape.heads, width}, context);
    const int64_t rows = args.q.shape[0];
    if (pair) check_tensor("args.q_pe", args.q_pe, kFloats, {rows, shape.heads, shape.rope}, context);
    check_rows_of_step("args.q", args.q, shape.tokens);
    check_tensor("args.topk_indices", args.topk_indices, kInt32, {kAny, kAny}, context);
    check_rows_of_step("args.topk_indices", args.topk_indices, shape.tokens);
    if (!shape.absorbed)
        check_tensor("args.w_uk_t", args.w_uk_t, kFloats, {shape.heads, shape.nope, shape.latent}, context);
    const bool up = present(args.w_uv);
    if (up)
        check_tensor("args.w_uv", args.w_uv, kFloats, {shape.heads, shape.latent, model.v_head_dim}, context);
    const int64_t value = up ? model.v_head_dim : shape.latent;
    if (args.out.ndim == 2) check_tensor("args.out", args.out, kFloats, {kAny, shape.heads * value}, context);
    else check_tensor("args.out", args.out, kFloats, {kAny, shape.heads, value}, context);
    check_rows("args.out", args.out);
    check_rows_of_step("args.out", args.out, shape.tokens);
    if (check_optional("args.k_c", args.k_c, kFloats, {kAny, shape.latent}, context)) {
        check_rows_of_step("args.k_c", args.k_c, shape.tokens);
        const int64_t keys = args.k_c.shape[0];
        if (shape.rope && args.k_pe.ndim == 3)
            check_tensor("args.k_pe", args.k_pe, kFloats, {keys, 1, shape.rope}, context);
        else if (shape.rope) check_tensor("args.k_pe", args.k_pe, kFloats, {keys, shape.rope}, context);
    }
    check_cache("args.kv_cache", args.kv_cache, on.format);
    check_pages("args.kv_cache", args.kv_cache, step.kv);
    SMLA_CHECK(!present(args.sink), "args.sink", describe(args.sink), "absent: V3.2 has no sinks");
    SMLA_CHECK(args.swa_cache.format == SMLA_FORMAT_NONE, "args.swa_cache.format", args.swa_cache.format,
               "none: V3.2 has no window cache");
    return shape;
}

// q and q_pe as one [T,H,latent + rope].
Tensor joined(Runner& run, const BackendInstance& on, const StepFields& step, const Shape& shape,
              const ForwardArgs& args) {
    const Tensor q =
        run.activation(on.config.args.dtype, {shape.tokens, shape.heads, shape.latent + shape.rope});
    copy_rows(run, step.batch, slice(args.q, 0, 0, shape.tokens), slice(q, 2, 0, shape.latent));
    copy_rows(run, step.batch, slice(args.q_pe, 0, 0, shape.tokens),
              slice(q, 2, shape.latent, shape.latent + shape.rope));
    return q;
}

}  // namespace

void forward_dsa(Runner& run, const BackendInstance& on, const Metadata* metadata, const ForwardArgs& args) {
    const StepFields fields = metadata ? metadata->step() : largest_step(on, args.q.shape[0]);
    const Shape shape = check_args(on, fields, args, context_of(run, metadata));
    SMLA_CHECK(present(fields.kv.block_table), "batch.primary.block_table", "absent",
               "the table: rows are looked up in it");
    const auto cut = [&](const Tensor& tensor) { return slice(tensor, 0, 0, shape.tokens); };
    DsaStep step{};
    step.q = present(args.q_pe) && shape.rope ? joined(run, on, fields, shape, args) : cut(args.q);
    if (present(args.k_c)) {  // a cache without pages: write_kv writes nothing
        step.latent = cut(args.k_c);
        if (shape.rope) step.k_rope = reshape_rows(cut(args.k_pe), {shape.rope});
    }
    if (!shape.absorbed) step.w_uk = transposed(args.w_uk_t);
    if (present(args.w_uv)) step.w_uv = transposed(args.w_uv);
    step.forced = {.indices = cut(args.topk_indices), .lengths = fields.row_limit};
    step.query_dtype = on.config.args.dtype;
    step.precision = on.config.args.precision;
    step.softmax_scale = on.config.args.softmax_scale;
    step.kv = fields.kv;
    step.kv.cache = args.kv_cache;
    if (const int32_t page_rows = fields.kv.cache.page_rows) step.kv.cache.page_rows = page_rows;
    const int64_t value = args.out.ndim == 3 ? args.out.shape[2] : args.out.shape[1] / shape.heads;
    step.out = reshape_rows(cut(args.out), {shape.heads, value});
    if (present(args.lse)) step.lse = cut(args.lse);
    run_dsa_step(run, fields.batch, step);
}

}  // namespace smla
