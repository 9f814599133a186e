// fp8_576 (V3.2, as TRTLLM-gen kernels read it): 512 latent values and 64 rope values.
#include "formats/per_tensor_fp8.h"

namespace smla {

constexpr Format kFp8_576 = format_of<PerTensorFp8<layout::Fp8_576>>(SMLA_FP8_576, "fp8_576");

}  // namespace smla
