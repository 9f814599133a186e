#include "engines/cpu/lanes_avx2.h"
#include "engines/cpu/select/passes.h"

namespace smla {

extern constexpr SelectKernel kSelectAvx2 =
    select_kernel<lanes::Avx2>("cpu_avx2_threshold_select", SMLA_ISA_AVX2);

}  // namespace smla
