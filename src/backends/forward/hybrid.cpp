// The forward of V4 and V4.1: attends to the window cache and the compressed cache in one softmax. Before
// prefill, published kernels gather both into one list or workspace (smla/rows.h); this forward reads the
// lists directly.
#include "backends/forward/forward.h"

namespace smla {

namespace {

void check_absent(const ForwardArgs& args) {
    const struct {
        const char* field;
        const Tensor& tensor;
    } absent[] = {{"args.q_pe", args.q_pe},
                  {"args.k_pe", args.k_pe},
                  {"args.w_uk_t", args.w_uk_t},
                  {"args.w_uv", args.w_uv}};
    for (const auto& [field, tensor] : absent)
        SMLA_CHECK(!present(tensor), field, describe(tensor),
                   "absent (V4 and V4.1 have no absorbed queries)");
}

// Returns the checked arguments, cut to the step's rows.
ForwardArgs checked(const BackendInstance& on, const StepFields& step, const ForwardArgs& given,
                    const CheckContext& context) {
    const BackendArgs& model = on.config.args;
    const int64_t width = model.head_dim;
    const auto wanted_heads = [&] { return text("at least ", model.heads, " (the heads of q)"); };
    const RowsOfStep rows(step.tokens, context);
    ForwardArgs args = given;
    args.q = rows.in("args.q", given.q, kFloats | dtype_bit(SMLA_E4M3), {model.heads, width});
    args.k_c = rows.optional_in("args.k_c", given.k_c, kFloats, {width});
    args.out = rows.out("args.out", given.out, kFloats, {kAny, width});
    SMLA_CHECK(args.out.shape[1] >= model.heads, "args.out.shape[1]", args.out.shape[1], wanted_heads());
    args.lse = rows.optional_out("args.lse", given.lse, kFloat32Or64, {model.heads});
    if (check_optional("args.sink", given.sink, kFloat32Or64, {kAny}, context)) {
        SMLA_CHECK(given.sink.shape[0] >= model.heads, "args.sink.shape[0]", given.sink.shape[0],
                   wanted_heads());
        args.sink = slice(given.sink, 0, 0, model.heads);
    }
    check_absent(args);
    if (reads_selection(on.config.kind()))
        args.topk_indices = rows.in("args.topk_indices", given.topk_indices, kInt32, {kAny});
    args.swa_cache =
        cache_of_step(on, "args.swa_cache", given.swa_cache, on.format, step.window.group, context);
    // A layer without entries has no compressed cache, so args.kv_cache is ignored.
    if (on.config.kind() != LayerKind::sliding)
        args.kv_cache =
            cache_of_step(on, "args.kv_cache", given.kv_cache, on.entry_format, step.entries.group, context);
    return args;
}

// Sets the entries of the compressed cache that the step attends to.
void set_entries(HybridStep& step, const BackendInstance& on, const StepFields& fields,
                 const ForwardArgs& args) {
    step.kind = on.config.kind();
    if (step.kind == LayerKind::sliding) return;
    step.ratio = on.config.args.ratio;
    step.entries = fields.entries;
    step.entries.group.cache = args.kv_cache;
    if (reads_selection(step.kind)) step.forced = {.indices = args.topk_indices, .lengths = fields.row_limit};
}

}  // namespace

void forward_hybrid(Runner& run, const BackendInstance& on, const Metadata* metadata,
                    const ForwardArgs& given) {
    const BackendArgs& model = on.config.args;
    const StepFields fields = metadata ? metadata->step() : largest_step(on, given.q.shape[0]);
    const ForwardArgs args = checked(on, fields, given, context_of(run, metadata));
    HybridStep step;
    step.q = args.q;
    step.key.head = args.k_c;  // write_kv skips a cache without pages
    step.precision = model.precision;
    step.softmax_scale = model.softmax_scale;
    step.q_scale = args.q.dtype == SMLA_E4M3 ? model.q_scale : 0;
    step.sink = args.sink;
    step.window = fields.window;
    step.window.group.cache = args.swa_cache;
    step.out = slice(args.out, 1, 0, model.heads);
    step.lse = args.lse;
    set_entries(step, on, fields, args);
    run_hybrid_step(run, fields.batch, step);
    // Published kernels pad heads, so heads of `out` beyond the heads of q become 0.
    if (args.out.shape[1] > model.heads && !run.sizing())
        zero_rows(run.env(), slice(args.out, 1, model.heads, args.out.shape[1]), fields.tokens);
}

}  // namespace smla
