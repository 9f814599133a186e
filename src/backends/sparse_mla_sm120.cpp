// SPARSE_MLA_SM120: V3.2 on sm_120 and sm_121, one entry for decode and prefill, metadata without a schedule.
#include "backends/latent.h"

namespace smla {

namespace {

constexpr smla_dtype kDtypes[] = {SMLA_BF16};
constexpr const char* kPublishedTypes[] = {"auto", "bfloat16", "fp8_ds_mla", "fp8"};
constexpr int32_t kHeadSizes[] = {576}, kCapabilities[] = {12};

int32_t padded_heads(const BackendConfig& config) {
    return padded_to(config.args.heads, {8, 16, 32, 64, 128});
}

std::string published_indexer(const BackendConfig& config) {
    return config.args.topk ? "" : "a model with index_topk in its config is needed";
}

}  // namespace

const Backend kSparseMlaSm120 = {
    .name = "SPARSE_MLA_SM120",
    .aliases = {},
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
                  .more = published_indexer},
    .padded_heads = padded_heads,
    .metadata = [](const BackendInstance& on) -> std::unique_ptr<Metadata> {
        return std::make_unique<LatentMetadata>(on);
    },
    .forward = forward_latent,
};

}  // namespace smla
