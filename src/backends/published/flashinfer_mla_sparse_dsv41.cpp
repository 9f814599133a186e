// FLASHINFER_MLA_SPARSE_DSV41: V4.1 with plain caches, on 12.x with V4's format; decode and prefill attend in
// separate calls. In the split formats of FlashInfer's V4.1 kernels, a page's scales follow its rows.
#include "backends/published/common.h"

namespace smla {

namespace {

constexpr CacheType kCacheTypes[] = {
    {.name = "auto", .format = SMLA_ROW_BF16, .major = 12, .there = SMLA_FP8_584},
    {.name = "bfloat16", .format = SMLA_ROW_BF16},
    {.name = "fp8", .format = SMLA_FP8_512, .major = 12, .there = SMLA_FP8_584},
    {.name = "fp8_e4m3", .format = SMLA_FP8_512},
    {.name = "fp8_ds_mla", .format = SMLA_FP8_584},
    {.name = "nvfp4_288_split", .format = SMLA_FP8_528_G32_SPLIT, .entries = SMLA_NVFP4_288_SPLIT}};
constexpr const char* kPublishedTypes[] = {"auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"};
constexpr int32_t kHeads[] = {8, 16, 32, 64, 128}, kCapabilities[] = {10, 12};

// The gate accepts fp8_e4m3 on 12.x, but the layer then rejects this type.
std::string published_shape(const BackendConfig& config) {
    const bool sm_12x = major_capability(config.args.device) == 12;
    if (sm_12x && config.cache_type == "fp8_e4m3")
        return "fp8_e4m3 is not supported on compute capability 12.x (the layer requires packed records)";
    return flashinfer_refusal(config);
}

}  // namespace

const Backend kFlashInferMlaSparseDsv41 = {
    .name = "FLASHINFER_MLA_SPARSE_DSV41",
    .aliases = {},
    .family = SMLA_FAMILY_HYBRID_SHARED,
    .cache_types = kCacheTypes,
    .formats = kRowFormats | formats(SMLA_FP8_512, SMLA_FP8_584, SMLA_FP8_528_G32_SPLIT),
    .page_tokens = 128,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .heads = {.sizes = kHeads},
    .published = {.dtypes = kBf16Only,
                  .cache_types = kPublishedTypes,
                  .head_sizes = kHybridHeadSizes,
                  .page_multiple = 128,
                  .page_exact = true,
                  .capabilities = kCapabilities,
                  .more = published_shape},
    .fields = kFlashInferFields,
};

}  // namespace smla
