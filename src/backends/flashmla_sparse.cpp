// FLASHMLA_SPARSE: V3.2 on sm_90 and sm_100, through FlashMLA's kernels in the original. Its metadata carry
// the decode schedule of an fp8 cache, and lengths to tell the cached context from new tokens.
#include "backends/latent.h"
#include "backends/maps/decode_schedule.h"

namespace smla {

namespace {

class FlashMlaMetadata final : public LatentMetadata {
public:
    explicit FlashMlaMetadata(const BackendInstance& on)
        : LatentMetadata(on, false), fp8_(on.format == SMLA_FP8_656 || on.format == SMLA_FP8_528) {
        const BackendArgs& args = on.config.args;
        sm_100_ = major_capability(args.device) == 10;
        topk_tensor_ = &own("topk_tokens_tensor", SMLA_I32, {1}, args.topk);
        own("max_model_len_tensor", SMLA_I32, {1}, args.max_seq_len);
        if (fp8_) {
            schedule_ =
                &own("fp8_extra_metadata.scheduler_metadata", SMLA_I32, {parts(1), kScheduleColumns}, 0);
            num_splits_ = &own("fp8_extra_metadata.num_splits", SMLA_I32, {2}, 0);
            own("fp8_extra_metadata.dummy_block_table", SMLA_I32, {1, 1}, 0);
            own("fp8_extra_metadata.cache_lens", SMLA_I32, {1}, args.max_seq_len);
        }
        prefill_table_ = &shown("prefill.block_table");
        has_context_ = &number("prefill.has_context");
        context_lens_ = &own("prefill.context_lens", SMLA_I32, {args.max_requests}, 0);
        token_context_ = &own("prefill_context_lengths", SMLA_I32, {args.max_tokens}, 0);
        new_starts_ = &own("prefill_new_k_start_locs", SMLA_I32, {int64_t(args.max_requests) + 1}, 0);
        finish();
        *prefill_table_ = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {0, 0});
    }

private:
    int64_t parts(int64_t tokens) const {
        return flash_mla_parts(args().device.multiprocessors, args().heads, std::max<int64_t>(tokens, 1),
                               sm_100_);
    }

    void fill(const PlanBatch& batch) override {
        LatentMetadata::fill(batch);
        if (fp8_) {  // all tokens are one request of the kernel: more would exceed its schedule
            schedule_->shape[0] = parts(tokens());
            smla_decode_schedule_args schedule{};
            schedule.lens = *topk_tensor_;
            schedule.schedule = *schedule_;
            schedule.splits = *num_splits_;
            decode_schedule(schedule);
        }
        const int64_t decodes = split().decodes, prefills = split().prefills, first = split().decode_tokens;
        const int32_t *starts = ints(batch.query_start_loc), *lengths = ints(batch.seq_lens);
        *prefill_table_ = present(batch.primary.block_table)
                              ? slice(batch.primary.block_table, 0, decodes, requests())
                              : batch.primary.block_table;
        context_lens_->shape[0] = prefills;
        token_context_->shape[0] = split().prefill_tokens;
        new_starts_->shape[0] = prefills + 1;
        *has_context_ = 0;
        ints(*new_starts_)[0] = 0;
        for (int64_t i = 0; i < prefills; ++i) {
            const int64_t r = decodes + i;
            const int32_t context = lengths[r] - (starts[r + 1] - starts[r]);
            ints(*context_lens_)[i] = context;
            ints(*new_starts_)[i + 1] = starts[r + 1] - int32_t(first);
            if (context > 0) *has_context_ = 1;
            std::fill(ints(*token_context_) + starts[r] - first,
                      ints(*token_context_) + starts[r + 1] - first, context);
        }
    }

    bool fp8_, sm_100_ = false;
    Tensor *topk_tensor_, *schedule_ = nullptr, *num_splits_ = nullptr;
    Tensor *prefill_table_, *context_lens_, *token_context_, *new_starts_;
    int32_t* has_context_;
};

constexpr const char* kAliases[] = {"FLASHMLA_SPARSE_VLLM_V1"};
constexpr smla_dtype kDtypes[] = {SMLA_BF16};
constexpr const char* kPublishedTypes[] = {"auto", "bfloat16", "fp8_ds_mla", "fp8"};
constexpr int32_t kHeadSizes[] = {576}, kCapabilities[] = {9, 10};

int32_t padded_heads(const BackendConfig& config) {
    const int32_t unit = major_capability(config.args.device) == 10 ? 128 : 64;
    return int32_t(round_up(size_t(config.args.heads), size_t(unit)));
}

// Fewer heads than the kernel's are padded, which they must divide; more must be a multiple.
std::string published_heads(const BackendConfig& config) {
    const int32_t unit = major_capability(config.args.device) == 10 ? 128 : 64, heads = config.args.heads;
    if (heads % unit == 0 || unit % heads == 0) return "";
    return text(heads, " heads; it has divisors and multiples of ", unit);
}

}  // namespace

const Backend kFlashMlaSparse = {
    .name = "FLASHMLA_SPARSE",
    .aliases = kAliases,
    .family = SMLA_FAMILY_DSA,
    .cache_types = kLatentCacheTypes,
    .formats = kLatentFormats,
    .page_tokens = 64,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .published = {.dtypes = kDtypes,
                  .cache_types = kPublishedTypes,
                  .head_sizes = kHeadSizes,
                  .page_multiple = 64,
                  .page_exact = true,
                  .capabilities = kCapabilities,
                  .more = published_heads},
    .padded_heads = padded_heads,
    .metadata = [](const BackendInstance& on) -> std::unique_ptr<Metadata> {
        return std::make_unique<FlashMlaMetadata>(on);
    },
    .forward = forward_latent,
};

}  // namespace smla
