#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/save_state/save_state.h"

namespace smla {

namespace {
using Args = smla_save_state_args;
constexpr Candidate<Args> kTable[] = {
    {.name = "cuda_mma_generic",
     .refuse = [](const Args& args, const Env&) { return refuse_f64(args); },
     .workspace = no_scratch<Args>,
     .run = run_cuda_save_state},
};
}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::save_state>() {
    return kTable;
}

}  // namespace smla
