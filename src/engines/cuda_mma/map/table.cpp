#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/map/map.h"

namespace smla {

namespace {
using Args = smla_map_args;
// Integers only: nothing to refuse.
constexpr Candidate<Args> kTable[] = {
    {.name = "cuda_mma_generic",
     .refuse = [](const Args&, const Env&) { return std::string(); },
     .workspace = no_scratch<Args>,
     .run = run_cuda_map},
};
}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::map>() {
    return kTable;
}

}  // namespace smla
