#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/write/write.h"

namespace smla {

namespace {
using Args = smla_write_args;
// No width to refuse: formats end at kMaxRowWidth.
constexpr Candidate<Args> kTable[] = {
    {.name = "cuda_mma_generic",
     .refuse = [](const Args& args, const Env&) { return refuse_f64(args); },
     .workspace = no_scratch<Args>,
     .run = run_cuda_write},
};
}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::write_kv>() {
    return kTable;
}
template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::write_index>() {
    return kTable;
}

}  // namespace smla
