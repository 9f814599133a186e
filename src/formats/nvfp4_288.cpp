#include "formats/nv_fp4.h"

namespace smla {

// nvfp4_288 (vLLM 0.33 and sglang's *_NEW caches): a token's values and scales are contiguous.
constexpr Format kNvfp4_288 = format_of<NvFp4_288<layout::Nvfp4_288<false>>>(SMLA_NVFP4_288, "nvfp4_288");
// nvfp4_288_split (sglang's V41_FP4 caches and flashinfer): scales are stored after all rows of a page.
constexpr Format kNvfp4_288Split =
    format_of<NvFp4_288<layout::Nvfp4_288<true>>>(SMLA_NVFP4_288_SPLIT, "nvfp4_288_split");

}  // namespace smla
