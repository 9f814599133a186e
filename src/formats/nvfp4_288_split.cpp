// nvfp4_288_split (sglang's V41_FP4 caches and flashinfer): scales are stored after all rows of a page.
#include "formats/nv_fp4.h"

namespace smla {

constexpr Format kNvfp4_288Split =
    format_of<NvFp4_288<layout::Nvfp4_288<true>>>(SMLA_NVFP4_288_SPLIT, "nvfp4_288_split");

}  // namespace smla
