#include "engines/cpu/attend/lanes_neon.h"
#include "engines/cpu/compress/pool_rows.h"

namespace smla::cpu_compress {

extern const PoolKernel kPoolNeon = {
    .name = "cpu_neon_compress", .isa = SMLA_ISA_NEON, .run = pool_rows<cpu_attend::NeonF32>};

}  // namespace smla::cpu_compress
