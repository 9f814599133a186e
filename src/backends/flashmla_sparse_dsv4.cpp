// FLASHMLA_SPARSE_DSV4: V4 with a page-packed window cache and a compressed one. The original copies both
// into a bf16 workspace before each prefill chunk (combined rows, smla/rows.h); here prefill reads the pages.
#include "backends/flashmla_sparse_dsv4.h"

#include "backends/latent.h"

namespace smla {

namespace {

void check_rows_of_step(const char* field, const Tensor& tensor, int64_t tokens) {
    SMLA_CHECK(tensor.shape[0] >= tokens, text(field, ".shape[0]"), tensor.shape[0],
               text(tokens, " tokens or more"));
}

void check_format(const BackendInstance& on, const char* field, const smla_cache& cache) {
    const Format* format = find_format(cache.format);
    SMLA_CHECK(cache.format == on.format, text(field, ".format"), format ? format->name : "none",
               find_format(on.format)->name);
}

void check_hybrid(const BackendInstance& on, const StepFields& step, const ForwardArgs& args) {
    const BackendArgs& model = on.config.args;
    const int64_t width = model.head_dim;
    check_tensor("args.q", args.q, kFloats | dtype_bit(SMLA_E4M3), {kAny, model.heads, width});
    check_rows_of_step("args.q", args.q, step.tokens);
    if (check_optional("args.k_c", args.k_c, kFloats, {kAny, width}))
        check_rows_of_step("args.k_c", args.k_c, step.tokens);
    check_tensor("args.out", args.out, kFloats, {kAny, kAny, width});
    check_rows("args.out", args.out);
    check_rows_of_step("args.out", args.out, step.tokens);
    SMLA_CHECK(args.out.shape[1] >= model.heads, "args.out.shape[1]", args.out.shape[1],
               text("the ", model.heads, " heads of q or more"));
    if (check_optional("args.sink", args.sink, kFloat32Or64, {kAny}))
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
        SMLA_CHECK(!present(tensor), field, describe(tensor), "absent: V4 absorbs nothing");
    if (model.ratio == 4) {
        check_tensor("args.topk_indices", args.topk_indices, kInt32, {kAny, kAny});
        check_rows_of_step("args.topk_indices", args.topk_indices, step.tokens);
    }
    check_format(on, "args.swa_cache", args.swa_cache);
    if (!model.ratio) return;  // the compressed cache of a window-only layer may hold anything
    check_format(on, "args.kv_cache", args.kv_cache);
    SMLA_CHECK(args.kv_cache.page_tokens == step.page_tokens, "args.kv_cache.page_tokens",
               args.kv_cache.page_tokens, text(step.page_tokens, " entries, as the metadata was built"));
}

}  // namespace

HybridCall hybrid_call(const BackendInstance& on, const Metadata* metadata, const ForwardArgs& args) {
    const BackendArgs& model = on.config.args;
    HybridCall call;
    call.fields = metadata ? metadata->step() : largest_step(on, args.q.shape[0]);
    StepFields& fields = call.fields;
    if (!metadata) fields.page_tokens = args.kv_cache.page_tokens;
    check_hybrid(on, fields, args);
    const auto cut = [&](const Tensor& tensor) {
        return present(tensor) ? slice(tensor, 0, 0, fields.tokens) : tensor;
    };
    HybridStep& step = call.step;
    step.ratio = model.ratio;
    step.q = cut(args.q);
    step.kv = cut(args.k_c);  // a cache without pages takes nothing
    step.softmax_scale = model.softmax_scale;
    step.q_scale = args.q.dtype == SMLA_E4M3 ? model.q_scale : 0;
    if (present(args.sink)) step.sink = slice(args.sink, 0, 0, model.heads);
    step.window = {args.swa_cache, fields.window_table, fields.slots};
    step.window_rows = fields.window_rows;
    step.window_lengths = fields.window_lengths;
    step.out = slice(cut(args.out), 1, 0, model.heads);
    step.lse = cut(args.lse);
    if (!model.ratio) return call;
    step.main.entries.cache = args.kv_cache;
    step.main.entries.block_table = fields.block_table;
    if (fields.page_rows) step.main.entries.cache.page_rows = fields.page_rows;
    step.entry_rows = fields.entry_rows;
    step.entry_lengths = fields.entry_lengths;
    if (model.ratio == 4) {
        step.forced_topk = cut(args.topk_indices);
        step.entry_rows = {};
        step.entry_lengths = fields.row_limit;
    }
    return call;
}

void run_hybrid_call(Runner& run, const HybridCall& call, const ForwardArgs& args) {
    run_hybrid_step(run, call.fields.batch, call.step);
    const int64_t heads = call.step.q.shape[1], all = args.out.shape[1];
    if (all > heads && !run.sizing())
        zero_rows(run.env(), slice(args.out, 1, heads, all), call.fields.tokens);
}

void forward_hybrid(Runner& run, const BackendInstance& on, const Metadata* metadata,
                    const ForwardArgs& args) {
    run_hybrid_call(run, hybrid_call(on, metadata, args), args);
}

std::unique_ptr<Metadata> hybrid_metadata(const BackendInstance& on) {
    return std::make_unique<HybridMetadata>(on, kPrefillChunkRequests);
}

static constexpr int32_t kCapabilities[] = {9, 10};

const Backend kFlashMlaSparseDsv4 = {
    .name = "FLASHMLA_SPARSE_DSV4",
    .aliases = {},
    .family = SMLA_FAMILY_HYBRID,
    .cache_types = kHybridCacheTypes,
    .formats = kHybridFormats,
    .page_tokens = 256,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .published = {.dtypes = kHybridDtypes,
                  .cache_types = kHybridPublishedTypes,
                  .head_sizes = kHybridHeadSizes,
                  .page_multiple = 256,
                  .page_exact = true,
                  .capabilities = kCapabilities},
    .padded_heads =
        [](const BackendConfig& config) {
            return padded_to(config.args.heads, {64, 128});
        },
    .metadata = hybrid_metadata,
    .forward = forward_hybrid,
};

}  // namespace smla
