// fp8_528_g32 (vLLM 0.33 and sglang's *_NEW caches): a token's values and scales are contiguous.
#include "formats/mx_fp8.h"

namespace smla {

constexpr Format kFp8_528_g32 = format_of<MxFp8<layout::Fp8_528_g32<false>>>(SMLA_FP8_528_G32, "fp8_528_g32");

}  // namespace smla
