#include "engines/cpu/lanes_avx2.h"
#include "engines/cpu/project/few_tokens.h"

namespace smla::cpu_project {

constexpr FewKernels kFewAvx2 = make_few<lanes::Avx2>();

}  // namespace smla::cpu_project
