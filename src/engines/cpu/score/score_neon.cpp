// score with f32 operands on the 4-lane registers of 64-bit Arm: at most 24 sums, of 32 registers.
#include "engines/cpu/lanes_neon.h"
#include "engines/cpu/score/products.h"

namespace smla {

extern constexpr ScoreKernel kScoreNeon =
    score_kernel<ScoreLanes<lanes::Neon, 16, 12, 8, 6>>("cpu_neon_f32_score", SMLA_ISA_NEON);

}  // namespace smla
