// fp8_528 (models without RoPE): fp8_656 without the rope part.
#include "formats/latent_fp8.h"

namespace smla {

constexpr Format kFp8_528 = format_of<LatentFp8<layout::Fp8_528>>(SMLA_FP8_528, "fp8_528");

}  // namespace smla
