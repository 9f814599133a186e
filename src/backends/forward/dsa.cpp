// The forward of V3.2 and GLM-5.x: absorbs queries, writes keys, maps positions to rows, attends, projects
// up.
#include "backends/forward/forward.h"

namespace smla {

namespace {

bool absorbed(const ForwardArgs& args) { return !present(args.w_uk_t); }

Tensor checked_out(const RowsOfStep& rows, const Tensor& out, int64_t heads, int64_t value) {
    if (out.ndim == 2)
        return reshape_rows(rows.out("args.out", out, kFloats, {heads * value}), {heads, value});
    return rows.out("args.out", out, kFloats, {heads, value});
}

Tensor checked_k_pe(const RowsOfStep& rows, const Tensor& k_pe, int64_t rope) {
    if (k_pe.ndim == 2) return rows.in("args.k_pe", k_pe, kFloats, {rope});
    Tensor out = rows.in("args.k_pe", k_pe, kFloats, {1, rope});
    out.ndim = 2;
    out.shape[1] = out.shape[2];
    out.stride_elems[1] = out.stride_elems[2];
    return out;
}

// Returns the checked arguments, cut to the step's rows; k_pe is [T,rope], out [T,H,v].
ForwardArgs checked(const BackendInstance& on, const StepFields& step, const ForwardArgs& given,
                    const CheckContext& context) {
    const BackendArgs& model = on.config.args;
    const int64_t heads = model.heads, latent = model.kv_lora_rank, rope = model.rope_dim,
                  nope = model.nope_dim;
    const RowsOfStep rows(step.tokens, context);
    ForwardArgs args = given;
    const bool pair = present(args.q_pe), up = present(args.w_uv);
    SMLA_CHECK(!pair || absorbed(args), "args.w_uk_t", "present",
               "absent, because args.q is already absorbed if args.q_pe is present");
    const int64_t width = pair ? latent : absorbed(args) ? latent + rope : nope + rope;
    args.q = rows.in("args.q", given.q, kFloats, {heads, width});
    if (pair) args.q_pe = rows.in("args.q_pe", given.q_pe, kFloats, {heads, rope});
    args.topk_indices = rows.in("args.topk_indices", given.topk_indices, kInt32, {kAny});
    if (!absorbed(args)) check_tensor("args.w_uk_t", args.w_uk_t, kFloats, {heads, nope, latent}, context);
    if (up) check_tensor("args.w_uv", args.w_uv, kFloats, {heads, latent, model.v_head_dim}, context);
    args.out = checked_out(rows, given.out, heads, up ? model.v_head_dim : latent);
    args.lse = rows.optional_out("args.lse", given.lse, kFloat32Or64, {heads});
    args.k_c = rows.optional_in("args.k_c", given.k_c, kFloats, {latent});
    if (present(args.k_c) && rope) args.k_pe = checked_k_pe(rows, given.k_pe, rope);
    args.kv_cache = cache_of_step(on, "args.kv_cache", given.kv_cache, on.format, step.kv, context);
    SMLA_CHECK(!present(args.sink), "args.sink", describe(args.sink), "absent (V3.2 has no attention sinks)");
    SMLA_CHECK(args.swa_cache.format == SMLA_FORMAT_NONE, "args.swa_cache.format", args.swa_cache.format,
               "none (V3.2 has no window cache)");
    return args;
}

// Returns q and q_pe as one [T,H,latent + rope].
Tensor joined(Runner& run, const BackendInstance& on, const StepFields& step, const ForwardArgs& args) {
    const int64_t latent = args.q.shape[2], width = latent + args.q_pe.shape[2];
    const Tensor q = run.activation(on.config.args.dtype, {args.q.shape[0], args.q.shape[1], width});
    copy_rows(run, step.batch, args.q, slice(q, 2, 0, latent));
    copy_rows(run, step.batch, args.q_pe, slice(q, 2, latent, width));
    return q;
}

}  // namespace

void forward_dsa(Runner& run, const BackendInstance& on, const Metadata* metadata, const ForwardArgs& given) {
    const StepFields fields = metadata ? metadata->step() : largest_step(on, given.q.shape[0]);
    const ForwardArgs args = checked(on, fields, given, context_of(run, metadata));
    SMLA_CHECK(present(fields.kv.block_table), "batch.primary.block_table", "absent",
               "a block table, which maps positions to rows");
    const bool rope = on.config.args.rope_dim > 0;
    DsaStep step{};
    step.q = present(args.q_pe) && rope ? joined(run, on, fields, args) : args.q;
    if (present(args.k_c)) {  // write_kv skips a cache without pages
        step.key.head = args.k_c;
        if (rope) step.key.tail = args.k_pe;
    }
    if (!absorbed(args)) step.w_uk = transposed(args.w_uk_t);
    if (present(args.w_uv)) step.w_uv = transposed(args.w_uv);
    step.forced = {.indices = args.topk_indices, .lengths = fields.row_limit};
    step.query_dtype = on.config.args.dtype;
    step.precision = on.config.args.precision;
    step.softmax_scale = on.config.args.softmax_scale;
    step.kv = fields.kv;
    step.kv.cache = args.kv_cache;
    step.out = args.out;
    step.lse = args.lse;
    run_dsa_step(run, fields.batch, step);
}

}  // namespace smla
