#include "engines/cpu/lanes_avx512.h"
#include "engines/cpu/project/few_tokens.h"

namespace smla::cpu_project {

constexpr FewKernels kFewAvx512 = make_few<lanes::Avx512>();

}  // namespace smla::cpu_project
