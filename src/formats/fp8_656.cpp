// fp8_656 (fp8_ds_mla of V3.2 and GLM): 512 latent values and 64 bf16 rope values.
#include "formats/latent_fp8.h"

namespace smla {

constexpr Format kFp8_656 = format_of<LatentFp8<layout::Fp8_656>>(SMLA_FP8_656, "fp8_656");

}  // namespace smla
