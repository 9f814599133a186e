// fp8_528_g32_split (sglang's V41 caches and flashinfer): scales are stored after all rows of a page.
#include "formats/mx_fp8.h"

namespace smla {

constexpr Format kFp8_528_g32Split =
    format_of<MxFp8<layout::Fp8_528_g32<true>>>(SMLA_FP8_528_G32_SPLIT, "fp8_528_g32_split");

}  // namespace smla
