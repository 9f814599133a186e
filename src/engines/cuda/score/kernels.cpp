// The score kernels of the cuda engine, best first.
#include "engines/cuda/score/run.h"

#include "engines/cuda/candidates.h"

namespace smla::cuda {

namespace {

std::string refuse_generic(const smla_score_args& args, const Env&) {
    return args.q.dtype == SMLA_F64 ? "f64 tensors are not supported on a GPU" : "";
}

constexpr ScoreKernel kKernels[] = {
    {.name = "cuda_sm90_pages_score", .refuse = refuse_score_pages, .run = run_score_pages},
    {.name = "cuda_sm90_score", .refuse = refuse_score_sm90, .run = run_score_sm90},
    {.name = "cuda_mma_score", .refuse = refuse_score_tile, .run = run_score_tile},
    {.name = "cuda_generic_score", .refuse = refuse_generic, .run = run_score_generic}};

template <const ScoreKernel& Kernel>
CallPlan<smla_score_args> plan_all_columns(const smla_score_args& args, const Env& env) {
    return plain_plan<smla_score_args>(
        Kernel.refuse(args, env), [](const smla_score_args& call, const Env& on) {
            const int64_t columns = call.logits.shape[1];
            Kernel.run(
                call,
                {.columns = columns,
                 .begin = 0,
                 .end = columns,
                 .logits = {call.logits.data, call.logits.stride_elems[0], call.logits.dtype == SMLA_BF16}},
                on);
        });
}

template <const ScoreKernel& Kernel>
constexpr Candidate<smla_score_args> candidate() {
    return {.name = Kernel.name, .plan = plan_all_columns<Kernel>};
}

}  // namespace

const Candidate<smla_score_args> kSm90PagesScore = candidate<kKernels[0]>();
const Candidate<smla_score_args> kSm90Score = candidate<kKernels[1]>();
const Candidate<smla_score_args> kMmaScore = candidate<kKernels[2]>();
const Candidate<smla_score_args> kGenericScore = candidate<kKernels[3]>();

const ScoreKernel* choose_score_kernel(const smla_score_args& args, const Env& env) {
    return choose(std::span<const ScoreKernel>(kKernels), Stage::score, env,
                  [&](const ScoreKernel& kernel) { return Support{kernel.refuse(args, env)}; })
        .kernel;
}

}  // namespace smla::cuda
