// The score kernels of the portable GPU engine, best first.
#include "engines/cuda_mma/score/run.h"

namespace smla {

namespace cuda {

namespace {

std::string refuse_generic(const smla_score_args& args, const Env&) {
    return args.q.dtype == SMLA_F64 ? "f64: for the reference engine" : "";
}

constexpr ScoreKernel kKernels[] = {
    {.name = "cuda_mma_score_tile", .refuse = refuse_score_tile, .run = run_score_tile},
    {.name = "cuda_mma_generic", .refuse = refuse_generic, .run = run_score_generic}};

size_t no_scratch(const smla_score_args&, const Env&, size_t) { return kWorkspaceHeader; }

template <const ScoreKernel& Kernel>
Candidate<smla_score_args> row() {
    return {.name = Kernel.name,
            .refuse = Kernel.refuse,
            .workspace = no_scratch,
            .run = [](const smla_score_args& args, const Env& env) {
                const int64_t columns = args.logits.shape[1];
                Kernel.run(args,
                           {.columns = columns,
                            .begin = 0,
                            .end = columns,
                            .logits = static_cast<float*>(args.logits.data),
                            .stride = args.logits.stride_elems[0]},
                           env);
            }};
}

}  // namespace

std::span<const ScoreKernel> score_kernels() { return kKernels; }

const ScoreKernel* chosen_score_kernel(const smla_score_args& args, const Env& env) {
    for (const ScoreKernel& kernel : kKernels)
        if (env.allows(Stage::score, kernel.name) && kernel.refuse(args, env).empty()) return &kernel;
    return nullptr;
}

}  // namespace cuda

template <>
std::span<const Candidate<smla_score_args>> cuda_mma_candidates<Stage::score>() {
    static const Candidate<smla_score_args> rows[] = {cuda::row<cuda::kKernels[0]>(),
                                                      cuda::row<cuda::kKernels[1]>()};
    return rows;
}

}  // namespace smla
