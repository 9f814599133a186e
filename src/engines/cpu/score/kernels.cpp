// The score kernels of the cpu engine.
#include "engines/cpu/candidates.h"
#include "engines/cpu/generic.h"
#include "engines/cpu/score/run.h"
#include "ops/score/score.h"

namespace smla {

namespace {

template <const ScoreKernel& Kernel>
constexpr Candidate<smla_score_args> tiled() {
    using Args = smla_score_args;
    return {.name = Kernel.name,
            .plan = [](const Args& args, const Env& env) { return plan_score(Kernel, args, env); },
            .last_resort = Kernel.isa == SMLA_ISA_AVX512_BF16 ? slow_bf16_dots_here<Args> : nullptr};
}

constexpr const ScoreKernel* kKernels[] = {
#if defined(__x86_64__)
    &kScoreAmx, &kScoreAvx512Bf16, &kScoreAvx512, &kScoreAvx2,
#elif defined(__aarch64__)
    &kScoreNeon,
#endif
    &kScoreScalar};

}  // namespace

const ScoreKernel* chosen_score_kernel(const smla_score_args& args, const Env& env) {
    for (const bool bf16_too : {!env.slow_bf16_dots, true})
        for (const ScoreKernel* kernel : kKernels)
            if ((bf16_too || kernel->isa != SMLA_ISA_AVX512_BF16) && env.allows(Stage::score, kernel->name) &&
                refuse_score(*kernel, args, env).empty())
                return kernel;
    return nullptr;
}

namespace cpu {

#if defined(__x86_64__)
const Candidate<smla_score_args> kAmxScore = tiled<kScoreAmx>();
const Candidate<smla_score_args> kAvx512Bf16Score = tiled<kScoreAvx512Bf16>();
const Candidate<smla_score_args> kAvx512Score = tiled<kScoreAvx512>();
const Candidate<smla_score_args> kAvx2Score = tiled<kScoreAvx2>();
#elif defined(__aarch64__)
const Candidate<smla_score_args> kNeonScore = tiled<kScoreNeon>();
#endif
const Candidate<smla_score_args> kScalarScore = tiled<kScoreScalar>();

}  // namespace cpu

}  // namespace smla
