// SPARSE_MLA_SM120: V3.2 on sm_120 and sm_121, one call for decode and prefill, metadata without a schedule.
#include "backends/published/common.h"

namespace smla {

namespace {

constexpr const char* kAliases[] = {"FLASHINFER_MLA_SPARSE_SM120"};  // since vLLM 0.33
constexpr int32_t kHeads[] = {8, 16, 32, 64, 128}, kCapabilities[] = {12};
constexpr MakeFieldSet kFields[] = {cache_fields};

std::string published_indexer(const BackendConfig& config) {
    return config.args.topk ? "" : "it requires a model with index_topk in its config";
}

}  // namespace

const Backend kSparseMlaSm120 = {
    .name = "SPARSE_MLA_SM120",
    .aliases = kAliases,
    .family = SMLA_FAMILY_DSA,
    .cache_types = kDsaCacheTypes,
    .formats = kDsaFormats,
    .page_tokens = 64,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .heads = {.sizes = kHeads},
    .published = {.dtypes = kBf16Only,
                  .cache_types = kPlainAndDsMla,
                  .head_sizes = kDsaHeadSizes,
                  .page_multiple = 64,
                  .page_exact = true,
                  .capabilities = kCapabilities,
                  .more = published_indexer},
    .fields = kFields,
};

}  // namespace smla
