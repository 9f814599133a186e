// fp8_576 (V3.2 on TRTLLM-gen style caches): 512 latent and 64 rope values, all e4m3.
#include "formats/per_tensor_fp8.h"

namespace smla {

constexpr Format kFp8_576 = format_of<PerTensorFp8<layout::Fp8_576>>(SMLA_FP8_576, "fp8_576");

}  // namespace smla
