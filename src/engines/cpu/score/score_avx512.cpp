// score with f32 operands on 16-lane registers: any key values, and queries that bf16 cannot hold.
#include "engines/cpu/lanes_avx512.h"
#include "engines/cpu/score/products.h"

namespace smla {

extern constexpr ScoreKernel kScoreAvx512 =
    score_kernel<ScoreLanes<lanes::Avx512, 16, 8, 8, 6>>("cpu_avx512_f32_score", SMLA_ISA_AVX512);

}  // namespace smla
