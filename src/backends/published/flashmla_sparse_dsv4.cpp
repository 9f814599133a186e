// FLASHMLA_SPARSE_DSV4: V4 with a page-packed window cache and a compressed cache. The original copies both
// into a bf16 workspace before each prefill chunk (combined rows, smla/rows.h).
#include "backends/published/common.h"

namespace smla {

namespace {

constexpr int32_t kHeads[] = {64, 128}, kCapabilities[] = {9, 10};

}  // namespace

const Backend kFlashMlaSparseDsv4 = {
    .name = "FLASHMLA_SPARSE_DSV4",
    .aliases = {},
    .family = SMLA_FAMILY_HYBRID,
    .cache_types = kHybridCacheTypes,
    .formats = kHybridFormats,
    .page_tokens = 256,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .heads = {.sizes = kHeads},
    .published = {.dtypes = kBf16Only,
                  .cache_types = kPlainAndDsMla,
                  .head_sizes = kHybridHeadSizes,
                  .page_multiple = 256,
                  .page_exact = true,
                  .capabilities = kCapabilities},
    .fields = kHybridFields,
    .prefill_requests_per_call = kPrefillChunkRequests,
};

}  // namespace smla
