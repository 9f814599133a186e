#include "engines/cpu/compress/pool_rows.h"
#include "engines/cpu/lanes_neon.h"

namespace smla::cpu_compress {

extern const PoolKernel kPoolNeon = {
    .name = "cpu_neon_compress", .isa = SMLA_ISA_NEON, .run = pool_rows<lanes::Neon>};

}  // namespace smla::cpu_compress
