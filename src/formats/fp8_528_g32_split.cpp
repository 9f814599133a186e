// fp8_528_g32_split (V4.1 as sglang's V41 and flashinfer keep it): the scales of a page behind its rows.
#include "formats/mx_fp8.h"

namespace smla {

constexpr Format kFp8_528_g32Split =
    format_of<MxFp8<layout::Fp8_528_g32<true>>>(SMLA_FP8_528_G32_SPLIT, "fp8_528_g32_split");

}  // namespace smla
