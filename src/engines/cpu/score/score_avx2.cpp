// score with f32 operands on 8-lane registers: 12 sums, 2 heads and a key are the maximum for 16 registers.
#include "engines/cpu/lanes_avx2.h"
#include "engines/cpu/score/products.h"

namespace smla {

extern constexpr ScoreKernel kScoreAvx2 =
    score_kernel<ScoreLanes<lanes::Avx2, 8, 6>>("cpu_avx2_f32_score", SMLA_ISA_AVX2);

}  // namespace smla
