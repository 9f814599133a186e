// FLASHMLA_SPARSE: V3.2 on sm_90 and sm_100, through FlashMLA's kernels in the original.
#include "backends/published/common.h"

namespace smla {

namespace {

constexpr const char* kAliases[] = {"FLASHMLA_SPARSE_VLLM_V1"};  // as vLLM of 2025 called it
constexpr int32_t kCapabilities[] = {9, 10};
constexpr PublishedHeads kHeads = {.unit = 64, .unit_on_sm100 = 128};
constexpr MakeFieldSet kFields[] = {cache_fields, limit_fields, fp8_schedule_fields, prefill_context_fields};

// A head count below the kernel's unit is padded and must divide the unit; a larger one must be a multiple.
std::string published_heads(const BackendConfig& config) {
    const int32_t unit = major_capability(config.args.device) == 10 ? kHeads.unit_on_sm100 : kHeads.unit;
    const int32_t heads = config.args.heads;
    if (heads % unit == 0 || unit % heads == 0) return "";
    return text(heads, " heads; it has divisors and multiples of ", unit);
}

}  // namespace

const Backend kFlashMlaSparse = {
    .name = "FLASHMLA_SPARSE",
    .aliases = kAliases,
    .family = SMLA_FAMILY_DSA,
    .cache_types = kDsaCacheTypes,
    .formats = kDsaFormats,
    .page_tokens = 64,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .heads = kHeads,
    .published = {.dtypes = kBf16Only,
                  .cache_types = kPlainAndDsMla,
                  .head_sizes = kDsaHeadSizes,
                  .page_multiple = 64,
                  .page_exact = true,
                  .capabilities = kCapabilities,
                  .more = published_heads},
    .fields = kFields,
};

}  // namespace smla
