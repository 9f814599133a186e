#include "engines/cpu/attend/lanes_avx2.h"
#include "engines/cpu/compress/pool_rows.h"

namespace smla::cpu_compress {

extern const PoolKernel kPoolAvx2 = {
    .name = "cpu_avx2_compress", .isa = SMLA_ISA_AVX2, .run = pool_rows<cpu_attend::Avx2F32>};

}  // namespace smla::cpu_compress
