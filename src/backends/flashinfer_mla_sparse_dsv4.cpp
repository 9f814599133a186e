// FLASHINFER_MLA_SPARSE_DSV4: V4 with plain caches of bf16, or of fp8 with one scale. One matrix lists the
// rows of both caches, window columns first; decode and prefill attend in a call each.
#include "backends/flashmla_sparse_dsv4.h"
#include "backends/latent.h"
#include "backends/maps/mixed_rows.h"

#include <algorithm>

namespace smla {

namespace {

class FlashInferMetadata final : public HybridMetadata {
public:
    explicit FlashInferMetadata(const BackendInstance& on)
        : HybridMetadata(on, on.config.args.max_requests, false) {
        decode_cu_ = &shown("decode_cum_seq_lens_q");
        prefill_cu_ = &own("prefill_cum_seq_lens_q", SMLA_I32, {int64_t(on.config.args.max_requests) + 1}, 0);
        decode_max_ = &number("decode_max_q_len");
        prefill_max_ = &number("prefill_max_q_len");
        finish();
    }

private:
    void fill(const PlanBatch& batch) override {
        HybridMetadata::fill(batch);
        const int64_t decodes = split().decodes;
        const int32_t* starts = ints(batch.query_start_loc);
        *decode_cu_ = slice(*find("query_start_loc"), 0, 0, decodes + 1);
        prefill_cu_->shape[0] = split().prefills + 1;
        for (int64_t r = decodes; r <= requests(); ++r)
            ints(*prefill_cu_)[r - decodes] = starts[r] - starts[decodes];
        const auto longest = [&](int64_t begin, int64_t end) {
            int32_t most = 0;
            for (int64_t r = begin; r < end; ++r) most = std::max(most, starts[r + 1] - starts[r]);
            return most;
        };
        *decode_max_ = longest(0, decodes);
        *prefill_max_ = longest(decodes, requests());
    }

    Tensor *decode_cu_, *prefill_cu_;
    int32_t *decode_max_, *prefill_max_;
};

// Arguments of the mixed rows of a layer, by kind. Decode entries of ratio 4 are local, those of 128 are
// rows.
smla_mixed_rows_args mixed_args(const BackendInstance& on, const Metadata& metadata,
                                const ForwardArgs& args) {
    const BackendArgs& model = on.config.args;
    const PlanFields& plan = metadata.plan().fields();
    const PlanBatch& batch = metadata.batch();
    const int64_t decodes = metadata.plan().split().decode_tokens, all = metadata.plan().size().query_tokens;
    smla_mixed_rows_args out{};
    out.window = model.window;
    out.ratio = model.ratio;
    out.window_page_tokens = batch.window.page_tokens;
    out.window_page_rows = batch.window.page_rows;
    out.entry_page_tokens = batch.compressed.page_tokens;
    out.entry_page_rows = batch.compressed.page_rows;
    out.decode_window_rows = slice(plan.window_rows, 0, 0, decodes);
    out.query_start_loc = *metadata.find("query_start_loc");
    out.seq_lens = *metadata.find("seq_lens");
    out.request_of_token = plan.request_of_token;
    out.window_table = batch.window.block_table;
    if (model.ratio) out.entry_table = batch.compressed.block_table;
    if (model.ratio == 4) {
        out.local = 1;
        out.topk = int32_t(args.topk_indices.shape[1]);
        out.is_valid = plan.is_valid;
        out.decode_entries = slice(args.topk_indices, 0, 0, decodes);
        out.prefill_entries = slice(args.topk_indices, 0, decodes, all);
    } else if (model.ratio) {
        out.prefill_entries = *metadata.find("c128a_prefill_topk_indices");
        out.topk = int32_t(out.prefill_entries.shape[1]);
        out.decode_entries = slice(plan.entry_rows, 0, 0, decodes);
        out.decode_lens = slice(plan.entry_len, 0, 0, decodes);
    } else {  // as many rows as there are prefill tokens, of no column
        out.prefill_entries = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {all - decodes, 0});
    }
    return out;
}

void forward(Runner& run, const BackendInstance& on, const Metadata* metadata, const ForwardArgs& args) {
    HybridCall call = hybrid_call(on, metadata, args);
    const int64_t tokens = call.fields.tokens, window = on.config.args.window;
    const int64_t columns = on.config.args.ratio == 4 ? args.topk_indices.shape[1]
                            : on.config.args.ratio    ? call.fields.entry_rows.shape[1]
                                                      : 0;
    const int64_t width = mixed_width(window, columns);
    const Tensor rows = run.activation(SMLA_I32, {tokens, width}), lens = run.activation(SMLA_I32, {tokens});
    if (!run.sizing()) {
        smla_mixed_rows_args mixed = mixed_args(on, *metadata, args);
        const int64_t query_tokens = metadata->plan().size().query_tokens;
        mixed.rows = slice(rows, 0, 0, query_tokens);
        mixed.lens = slice(lens, 0, 0, query_tokens);
        mixed_rows(mixed);
        // the step counts compressed columns alone, and none for a token that is not valid
        const int32_t* limit = ints(call.fields.row_limit);
        for (int64_t t = 0; t < tokens; ++t)
            ints(lens)[t] = t < query_tokens && limit[t] ? ints(lens)[t] - int32_t(window) : 0;
    }
    call.step.window_rows = slice(rows, 1, 0, window);
    if (on.config.args.ratio) {
        call.step.entry_rows = slice(rows, 1, window, width);
        call.step.entry_lengths = lens;
    }
    run_hybrid_call(run, call, args);
}

// "fp8" is a plain cast with one scale here.
constexpr CacheType kCacheTypes[] = {
    {"auto", SMLA_ROW_BF16}, {"bfloat16", SMLA_ROW_BF16}, {"fp8", SMLA_FP8_512}, {"fp8_e4m3", SMLA_FP8_512}};
constexpr smla_dtype kDtypes[] = {SMLA_BF16};
constexpr const char* kPublishedTypes[] = {"auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"};
constexpr int32_t kCapabilities[] = {10, 12};

std::string published_shape(const BackendConfig& config) {
    const int32_t major = major_capability(config.args.device);
    if (config.args.heads > 128) return text(config.args.heads, " heads; it pads to 64 or 128");
    if (major == 10 && config.cache_type == "fp8_ds_mla") return "fp8_ds_mla on 10.x";
    if (major == 12 && config.cache_type.substr(0, 3) != "fp8") return "a cache that is not fp8 on 12.x";
    return "";
}

}  // namespace

const Backend kFlashInferMlaSparseDsv4 = {
    .name = "FLASHINFER_MLA_SPARSE_DSV4",
    .aliases = {},
    .family = SMLA_FAMILY_HYBRID,
    .cache_types = kCacheTypes,
    .formats = kRowFormats | formats(SMLA_FP8_512),
    .page_tokens = 256,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .published = {.dtypes = kDtypes,
                  .cache_types = kPublishedTypes,
                  .head_sizes = kHybridHeadSizes,
                  .page_multiple = 256,
                  .page_exact = true,
                  .capabilities = kCapabilities,
                  .more = published_shape},
    .padded_heads =
        [](const BackendConfig& config) {
            return padded_to(config.args.heads, {64, 128});
        },
    .metadata = [](const BackendInstance& on) -> std::unique_ptr<Metadata> {
        return std::make_unique<FlashInferMetadata>(on);
    },
    .forward = forward,
};

}  // namespace smla
