#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/copy_pages/copy_pages.h"

namespace smla {

namespace {
using Args = smla_copy_pages_args;
// Bytes are bytes: f64 records too.
constexpr Candidate<Args> kTable[] = {
    {.name = "cuda_mma_generic",
     .refuse = [](const Args&, const Env&) { return std::string(); },
     .workspace = no_scratch<Args>,
     .run = run_cuda_copy_pages},
};
}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::copy_pages>() {
    return kTable;
}

}  // namespace smla
