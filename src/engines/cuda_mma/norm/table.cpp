#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/norm/norm.h"

namespace smla {

namespace {
using Args = smla_norm_args;
constexpr Candidate<Args> kTable[] = {
    {.name = "cuda_mma_generic",
     .refuse = [](const Args& args, const Env&) { return refuse_f64(args); },
     .workspace = no_scratch<Args>,
     .run = run_cuda_norm},
};
}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::norm>() {
    return kTable;
}

}  // namespace smla
