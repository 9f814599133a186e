// V4 and V4.1: attends to a window cache and a compressed one in one softmax. The published kernels gather
// both caches into one list or one workspace before prefill (smla/rows.h does it for them); here the lists
// are read as they are.
#include "backends/forward/forward.h"

namespace smla {

namespace {

void check_args(const BackendInstance& on, const StepFields& step, const ForwardArgs& args,
                const CheckContext& context) {
    const BackendArgs& model = on.config.args;
    const int64_t width = model.head_dim;
    check_tensor("args.q", args.q, kFloats | dtype_bit(SMLA_E4M3), {kAny, model.heads, width}, context);
    check_rows_of_step("args.q", args.q, step.tokens);
    if (check_optional("args.k_c", args.k_c, kFloats, {kAny, width}, context))
        check_rows_of_step("args.k_c", args.k_c, step.tokens);
    check_tensor("args.out", args.out, kFloats, {kAny, kAny, width}, context);
    check_rows("args.out", args.out);
    check_rows_of_step("args.out", args.out, step.tokens);
    SMLA_CHECK(args.out.shape[1] >= model.heads, "args.out.shape[1]", args.out.shape[1],
               text("the ", model.heads, " heads of q or more"));
    if (check_optional("args.sink", args.sink, kFloat32Or64, {kAny}, context))
        SMLA_CHECK(args.sink.shape[0] >= model.heads, "args.sink.shape[0]", args.sink.shape[0],
                   text("the ", model.heads, " heads of q or more"));
    const struct {
        const char* field;
        const Tensor& tensor;
    } absent[] = {{"args.q_pe", args.q_pe},
                  {"args.k_pe", args.k_pe},
                  {"args.w_uk_t", args.w_uk_t},
                  {"args.w_uv", args.w_uv}};
    for (const auto& [field, tensor] : absent)
        SMLA_CHECK(!present(tensor), field, describe(tensor), "absent: V4 and V4.1 absorb nothing");
    if (reads_selection(on.config.kind())) {
        check_tensor("args.topk_indices", args.topk_indices, kInt32, {kAny, kAny}, context);
        check_rows_of_step("args.topk_indices", args.topk_indices, step.tokens);
    }
    check_cache("args.swa_cache", args.swa_cache, on.format);
    // A layer without entries has no compressed cache: args.kv_cache is not looked at.
    if (on.config.kind() == LayerKind::sliding) return;
    check_cache("args.kv_cache", args.kv_cache, on.entry_format);
    check_pages("args.kv_cache", args.kv_cache, step.entries.group);
}

// Fills in which entries of the compressed cache the step attends to.
void set_entries(HybridStep& step, const BackendInstance& on, const StepFields& fields,
                 const ForwardArgs& args) {
    step.kind = on.config.kind();
    if (step.kind == LayerKind::sliding) return;
    step.ratio = on.config.args.ratio;
    step.entries = fields.entries;
    step.entries.group.cache = args.kv_cache;
    if (const int32_t page_rows = fields.entries.group.cache.page_rows)
        step.entries.group.cache.page_rows = page_rows;
    if (reads_selection(step.kind))
        step.forced = {.indices = slice(args.topk_indices, 0, 0, fields.tokens), .lengths = fields.row_limit};
}

}  // namespace

void forward_hybrid(Runner& run, const BackendInstance& on, const Metadata* metadata,
                    const ForwardArgs& args) {
    const BackendArgs& model = on.config.args;
    const StepFields fields = metadata ? metadata->step() : largest_step(on, args.q.shape[0]);
    check_args(on, fields, args, context_of(run, metadata));
    const auto cut = [&](const Tensor& tensor) {
        return present(tensor) ? slice(tensor, 0, 0, fields.tokens) : tensor;
    };
    HybridStep step;
    step.q = cut(args.q);
    step.kv = cut(args.k_c);  // a cache without pages: write_kv writes nothing
    step.precision = model.precision;
    step.softmax_scale = model.softmax_scale;
    step.q_scale = args.q.dtype == SMLA_E4M3 ? model.q_scale : 0;
    if (present(args.sink)) step.sink = slice(args.sink, 0, 0, model.heads);
    step.window = fields.window;
    step.window.group.cache = args.swa_cache;
    step.out = slice(cut(args.out), 1, 0, model.heads);
    step.lse = cut(args.lse);
    set_entries(step, on, fields, args);
    run_hybrid_step(run, fields.batch, step);
    // Published kernels pad heads: heads of `out` beyond those of q become 0.
    if (args.out.shape[1] > model.heads && !run.sizing())
        zero_rows(run.env(), slice(args.out, 1, model.heads, args.out.shape[1]), fields.tokens);
}

}  // namespace smla
