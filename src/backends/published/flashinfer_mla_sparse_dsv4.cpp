// FLASHINFER_MLA_SPARSE_DSV4: V4 with plain caches of bf16, or of fp8 with one scale; decode and prefill
// attend in separate calls. The original lists the rows of both caches in one matrix, window columns first
// (mixed rows, smla/rows.h).
#include "backends/published/common.h"

namespace smla {

namespace {

// In this backend, "fp8" is a plain cast with one scale.
constexpr CacheType kCacheTypes[] = {
    {"auto", SMLA_ROW_BF16}, {"bfloat16", SMLA_ROW_BF16}, {"fp8", SMLA_FP8_512}, {"fp8_e4m3", SMLA_FP8_512}};
constexpr const char* kPublishedTypes[] = {"auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"};
constexpr int32_t kHeads[] = {64, 128}, kCapabilities[] = {10, 12};

}  // namespace

const Backend kFlashInferMlaSparseDsv4 = {
    .name = "FLASHINFER_MLA_SPARSE_DSV4",
    .aliases = {},
    .family = SMLA_FAMILY_HYBRID,
    .cache_types = kCacheTypes,
    .formats = kRowFormats | formats(SMLA_FP8_512),
    .page_tokens = 256,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .heads = {.sizes = kHeads},
    .published = {.dtypes = kBf16Only,
                  .cache_types = kPublishedTypes,
                  .head_sizes = kHybridHeadSizes,
                  .page_multiple = 256,
                  .page_exact = true,
                  .capabilities = kCapabilities,
                  .more = flashinfer_refusal},
    .fields = kFlashInferFields,
};

}  // namespace smla
