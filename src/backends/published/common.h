// Definitions that the published backends of a family share.
#pragma once

#include "backends/metadata/sets.h"
#include "backends/registry.h"
#include "formats/format.h"

#include <string>

namespace smla {

inline constexpr smla_dtype kBf16Only[] = {SMLA_BF16};
inline constexpr const char* kPlainAndDsMla[] = {"auto", "bfloat16", "fp8_ds_mla", "fp8"};

// V3.2 and GLM-5.x: "fp8" is the 656-byte format, not a plain cast; without rope, the 528-byte format. The
// plain cast is "fp8_e4m3", which no published backend of this family supports.
inline constexpr CacheType kDsaCacheTypes[] = {{"auto", SMLA_ROW_BF16},
                                               {"bfloat16", SMLA_ROW_BF16},
                                               {"fp8_ds_mla", SMLA_FP8_656, SMLA_FP8_528},
                                               {"fp8", SMLA_FP8_656, SMLA_FP8_528},
                                               {"fp8_e4m3", SMLA_FP8_576, SMLA_FP8_512}};
constexpr uint32_t kDsaFormats =
    kRowFormats | formats(SMLA_FP8_656, SMLA_FP8_528, SMLA_FP8_576, SMLA_FP8_512);
inline constexpr int32_t kDsaHeadSizes[] = {576};

// V4: "fp8" is the 584-byte format, packed by page.
inline constexpr CacheType kHybridCacheTypes[] = {
    {"auto", SMLA_FP8_584}, {"fp8_ds_mla", SMLA_FP8_584}, {"fp8", SMLA_FP8_584}, {"bfloat16", SMLA_ROW_BF16}};
constexpr uint32_t kHybridFormats = kRowFormats | formats(SMLA_FP8_584);
inline constexpr int32_t kHybridHeadSizes[] = {512};
inline constexpr MakeFieldSet kHybridFields[] = {window_fields, entry_fields};
inline constexpr MakeFieldSet kFlashInferFields[] = {window_fields, entry_fields, call_length_fields};
constexpr int32_t kPrefillChunkRequests = 4;  // in published prefill loops

// Returns why FlashInfer's gate for V4 and V4.1 rejects a model: more heads than it pads to, or a cache type
// that its kernels for this compute capability do not read.
inline std::string flashinfer_refusal(const BackendConfig& config) {
    const int32_t major = major_capability(config.args.device);
    if (config.args.heads > 128)
        return text(config.args.heads, " heads are not supported (supported: at most 128)");
    if (major == 10 && config.cache_type == "fp8_ds_mla")
        return "fp8_ds_mla is not supported on compute capability 10.x";
    if (major == 12 && config.cache_type.substr(0, 3) != "fp8")
        return "only fp8 caches are supported on compute capability 12.x";
    return "";
}

}  // namespace smla
