// DSV4_SPARSE_MLA_SM120: V4 on sm_120 and sm_121. Layout and metadata are those of FLASHMLA_SPARSE_DSV4;
// prefill attends to pages, through its own window rows, in chunks of requests.
#include "backends/flashmla_sparse_dsv4.h"
#include "backends/latent.h"

namespace smla {

static constexpr int32_t kCapabilities[] = {12};

const Backend kDsv4SparseMlaSm120 = {
    .name = "DSV4_SPARSE_MLA_SM120",
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
            return padded_to(config.args.heads, {8, 16, 32, 64, 128});
        },
    .metadata = hybrid_metadata,
    .forward = forward_hybrid,
};

}  // namespace smla
