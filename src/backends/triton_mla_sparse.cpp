// TRITON_MLA_SPARSE: V3.2 on any GPU, decode split over the multiprocessors by occupancy.
#include "backends/latent.h"
#include "plan/split.h"

namespace smla {

namespace {

class TritonMetadata final : public LatentMetadata {
public:
    explicit TritonMetadata(const BackendInstance& on) : LatentMetadata(on, false) {
        own("topk_tokens_tensor", SMLA_I32, {1}, on.config.args.topk);
        own("max_model_len_tensor", SMLA_I32, {1}, on.config.args.max_seq_len);
        own("dummy_block_table", SMLA_I32, {1, 1}, 0);
        splits_ = &number("num_kv_splits");
        finish();
    }

private:
    void fill(const PlanBatch& batch) override {
        LatentMetadata::fill(batch);
        *splits_ =
            int32_t(triton_split_count(tokens(), args().heads, args().topk, args().device.multiprocessors));
    }

    int32_t* splits_;
};

constexpr smla_dtype kDtypes[] = {SMLA_BF16, SMLA_F16};
constexpr const char* kPublishedTypes[] = {"auto", "float16", "bfloat16"};
constexpr int32_t kHeadSizes[] = {576};

}  // namespace

const Backend kTritonMlaSparse = {
    .name = "TRITON_MLA_SPARSE",
    .aliases = {},
    .family = SMLA_FAMILY_DSA,
    .cache_types = kLatentCacheTypes,
    .formats = kLatentFormats,
    .page_tokens = 64,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .published = {.dtypes = kDtypes, .cache_types = kPublishedTypes, .head_sizes = kHeadSizes},
    .padded_heads =
        [](const BackendConfig& config) { return int32_t(round_up(size_t(config.args.heads), 16)); },
    .metadata = [](const BackendInstance& on) -> std::unique_ptr<Metadata> {
        return std::make_unique<TritonMetadata>(on);
    },
    .forward = forward_latent,
};

}  // namespace smla
