// fp8_512 (contiguous caches of V4): 448 values and 64 rope values.
#include "formats/per_tensor_fp8.h"

namespace smla {

constexpr Format kFp8_512 = format_of<PerTensorFp8<layout::Fp8_512>>(SMLA_FP8_512, "fp8_512");

}  // namespace smla
