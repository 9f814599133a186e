// FLASHMLA_SPARSE_DSV41: V4.1 with one packed format in both caches, which stores a token's values and scales
// together. The nvfp4 types are from vLLM's FLASHMLA_MEGA_ATTN_DSV41: four-bit entries, fp8 window.
#include "backends/published/common.h"

namespace smla {

namespace {

// On 9.x, the original uses V4's format.
constexpr CacheType packed(const char* name) {
    return {.name = name, .format = SMLA_FP8_528_G32, .major = 9, .there = SMLA_FP8_584};
}
constexpr CacheType four_bits(const char* name) {
    return {.name = name, .format = SMLA_FP8_528_G32, .entries = SMLA_NVFP4_288};
}

constexpr CacheType kCacheTypes[] = {packed("auto"),
                                     packed("fp8_ds_mla"),
                                     packed("fp8"),
                                     {"bfloat16", SMLA_ROW_BF16},
                                     four_bits("nvfp4_ds_mla"),
                                     four_bits("nvfp4_288")};
constexpr const char* kPublishedTypes[] = {"auto", "fp8_ds_mla", "fp8"};
constexpr int32_t kHeads[] = {64, 128}, kCapabilities[] = {9, 10};

std::string published_shape(const BackendConfig& config) {
    if (config.args.heads > 128)
        return text(config.args.heads, " heads are not supported (supported: at most 128)");
    const int32_t page = config.args.page_tokens,
                  wanted = major_capability(config.args.device) == 9 ? 64 : 128;
    return page && page != wanted ? text("block size ", page, " is not supported (supported: ", wanted, ")")
                                  : "";
}

}  // namespace

const Backend kFlashMlaSparseDsv41 = {
    .name = "FLASHMLA_SPARSE_DSV41",
    .aliases = {},
    .family = SMLA_FAMILY_HYBRID_SHARED,
    .cache_types = kCacheTypes,
    .formats = kRowFormats | formats(SMLA_FP8_528_G32, SMLA_FP8_584),
    .page_tokens = 128,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .heads = {.sizes = kHeads},
    .published = {.dtypes = kBf16Only,
                  .cache_types = kPublishedTypes,
                  .head_sizes = kHybridHeadSizes,
                  .capabilities = kCapabilities,
                  .more = published_shape},
    .fields = kHybridFields,
    .prefill_requests_per_call = kPrefillChunkRequests,
};

}  // namespace smla
