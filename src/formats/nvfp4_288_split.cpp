// nvfp4_288_split (V4.1 as sglang's V41_FP4 and flashinfer keep it): the scales of a page behind its rows.
#include "formats/nv_fp4.h"

namespace smla {

constexpr Format kNvfp4_288Split =
    format_of<NvFp4_288<layout::Nvfp4_288<true>>>(SMLA_NVFP4_288_SPLIT, "nvfp4_288_split");

}  // namespace smla
