// DSV4_SPARSE_MLA_SM120: V4 on sm_120 and sm_121, with the layout and metadata of FLASHMLA_SPARSE_DSV4. The
// original's prefill reads pages through its own window rows. vLLM 0.33 names this kernel
// FLASHINFER_MLA_SPARSE_DSV4, which is another backend here.
#include "backends/published/common.h"

namespace smla {

namespace {

constexpr int32_t kHeads[] = {8, 16, 32, 64, 128}, kCapabilities[] = {12};

}  // namespace

const Backend kDsv4SparseMlaSm120 = {
    .name = "DSV4_SPARSE_MLA_SM120",
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
