#include "engines/cpu/compress/pool_rows.h"
#include "engines/cpu/lanes_avx2.h"

namespace smla::cpu_compress {

extern const PoolKernel kPoolAvx2 = {
    .name = "cpu_avx2_compress", .isa = SMLA_ISA_AVX2, .run = pool_rows<lanes::Avx2>};

}  // namespace smla::cpu_compress
