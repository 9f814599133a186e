#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/gather/gather.h"

namespace smla {

namespace {
using Args = smla_gather_args;
constexpr Candidate<Args> kTable[] = {
    {.name = "cuda_mma_generic",
     .refuse = [](const Args& args, const Env&) { return refuse_f64(args); },
     .workspace = no_scratch<Args>,
     .run = run_cuda_gather},
};
}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::gather>() {
    return kTable;
}

}  // namespace smla
