// fp8_528_g32 (V4.1 as vLLM 0.33 and sglang's *_NEW caches keep it): values and scales of a token together.
#include "formats/mx_fp8.h"

namespace smla {

constexpr Format kFp8_528_g32 = format_of<MxFp8<layout::Fp8_528_g32<false>>>(SMLA_FP8_528_G32, "fp8_528_g32");

}  // namespace smla
