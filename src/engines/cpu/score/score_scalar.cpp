// score in the order of the specification, with the same bits as the reference. Lanes are vectors of four
// heads, which fit in registers on every target of this project.
#include "engines/cpu/lanes_scalar.h"
#include "engines/cpu/score/products.h"

namespace smla {

namespace {

struct InOrder : ScoreLanes<lanes::Scalar, 8, 4> {
    // Computes one sum for each key, in the order of the heads.
    template <int Groups>
    static SMLA_INLINE void weigh(const Vec (&dots)[Groups], const float* w, int heads, bool first,
                                  float* sums) {
        float products[Groups * lanes];
        std::memcpy(products, dots, sizeof products);
        float sum = first ? 0.f : sums[0];
        for (int h = 0; h < heads; ++h) sum += w[h] * (products[h] <= 0 ? 0.f : products[h]);  // NaN passes
        sums[0] = sum;
    }
    static SMLA_INLINE Vec totals(const float* sums) {
        return Vec{sums[0], sums[lanes], sums[2 * lanes], sums[3 * lanes]};
    }
};

}  // namespace

extern constexpr ScoreKernel kScoreScalar = score_kernel<InOrder>("cpu_scalar_f32_score", SMLA_ISA_SCALAR);

}  // namespace smla
