// FLASHINFER_MLA_SPARSE_DSV4: V4 with plain caches of bf16, or of fp8 with one scale; decode and prefill
// attend in a call each. The original lists the rows of both caches in one matrix, window columns first
// (mixed rows, smla/rows.h); here the two lists are read as they are.
#include "backends/flashmla_sparse_dsv4.h"
#include "backends/latent.h"

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
        *decode_cu_ = slice(query_start_loc(), 0, 0, decodes + 1);
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
        if (args().ratio == 4) limit_prefill_rows();
    }

    // Decodes count the entries that they find in their lists; prefill tokens count columns, as many as they
    // see entries.
    void limit_prefill_rows() {
        for (int64_t t = split().decode_tokens; t < plan().size().query_tokens; ++t)
            limit_rows(t, ints(plan().fields().visible_entries)[t]);
    }

    Tensor *decode_cu_, *prefill_cu_;
    int32_t *decode_max_, *prefill_max_;
};

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
    .forward = forward_hybrid,
};

}  // namespace smla
