// TRITON_MLA_SPARSE: V3.2 on any GPU; decode is split over the multiprocessors by occupancy. vLLM 0.33 has no
// counterpart, and so no backend for sm_80 to sm_89.
#include "backends/published/common.h"

namespace smla {

namespace {

constexpr smla_dtype kDtypes[] = {SMLA_BF16, SMLA_F16};
constexpr const char* kPublishedTypes[] = {"auto", "float16", "bfloat16"};
constexpr MakeFieldSet kFields[] = {cache_fields, limit_fields, kv_split_fields};

}  // namespace

const Backend kTritonMlaSparse = {
    .name = "TRITON_MLA_SPARSE",
    .aliases = {},
    .family = SMLA_FAMILY_DSA,
    .cache_types = kDsaCacheTypes,
    .formats = kDsaFormats,
    .page_tokens = 64,
    .graph_support = SMLA_GRAPH_UNIFORM_BATCH,
    .heads = {.unit = 16, .unit_on_sm100 = 16},
    .published = {.dtypes = kDtypes, .cache_types = kPublishedTypes, .head_sizes = kDsaHeadSizes},
    .fields = kFields,
};

}  // namespace smla
