#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/compress/compress.h"

namespace smla {

namespace {
using Args = smla_compress_args;
// No width to refuse: formats end at kMaxRowWidth.
constexpr Candidate<Args> kTable[] = {
    {.name = "cuda_mma_generic",
     .refuse = [](const Args& args, const Env&) { return refuse_f64(args); },
     .workspace = no_scratch<Args>,
     .run = run_cuda_compress},
};
}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::compress>() {
    return kTable;
}

}  // namespace smla
