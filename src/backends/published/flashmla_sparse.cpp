// FLASHMLA_SPARSE: V3.2 on sm_90 and sm_100; the original uses FlashMLA's kernels.
#include "backends/published/common.h"

namespace smla {

namespace {

constexpr const char* kAliases[] = {"FLASHMLA_SPARSE_VLLM_V1"};  // name in vLLM of 2025
constexpr int32_t kCapabilities[] = {9, 10}, kHeadSizes[] = {576, 512};
constexpr PublishedHeads kHeads = {.unit = 64, .unit_on_sm100 = 128};
constexpr MakeFieldSet kFields[] = {cache_fields, limit_fields, fp8_schedule_fields, prefill_context_fields};

// A head count below the kernel's unit is padded and must divide the unit; a larger count must be a multiple.
// Head size 512 belongs to GLM-5.3-Flash, since vLLM 0.33.
std::string published_shapes(const BackendConfig& config) {
    if (config.head_size() == 512 &&
        (config.rope_dim() || config.cache_type == "fp8" || major_capability(config.args.device) != 9))
        return "head size 512; only without rope, on 9.x, with a bf16 or fp8_ds_mla cache";
    const int32_t unit = major_capability(config.args.device) == 10 ? kHeads.unit_on_sm100 : kHeads.unit;
    const int32_t heads = config.args.heads;
    if (heads % unit == 0 || unit % heads == 0) return "";
    return text(heads, " heads are not supported (supported: divisors and multiples of ", unit, ")");
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
                  .head_sizes = kHeadSizes,
                  .page_multiple = 64,
                  .page_exact = true,
                  .capabilities = kCapabilities,
                  .more = published_shapes},
    .fields = kFields,
};

}  // namespace smla
