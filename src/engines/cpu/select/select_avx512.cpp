#include "engines/cpu/lanes_avx512.h"
#include "engines/cpu/select/passes.h"

namespace smla {

extern constexpr SelectKernel kSelectAvx512 =
    select_kernel<lanes::Avx512>("cpu_avx512_threshold_select", SMLA_ISA_AVX512);

}  // namespace smla
