// nvfp4_288 (vLLM 0.33 and sglang's *_NEW caches): a token's values and scales are contiguous.
#include "formats/nv_fp4.h"

namespace smla {

constexpr Format kNvfp4_288 = format_of<NvFp4_288<layout::Nvfp4_288<false>>>(SMLA_NVFP4_288, "nvfp4_288");

}  // namespace smla
