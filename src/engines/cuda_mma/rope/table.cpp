#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/rope/rope.h"

namespace smla {

namespace {
using Args = smla_rope_args;

std::string refuse(const Args& args, const Env&) {
    const int64_t pairs = args.frequencies.shape[0];
    if (pairs > kMaxRopePairs) return text(pairs, " rotated pairs: more than ", kMaxRopePairs);
    return refuse_f64(args);
}

constexpr Candidate<Args> kTable[] = {
    {.name = "cuda_mma_generic", .refuse = refuse, .workspace = no_scratch<Args>, .run = run_cuda_rope}};
}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::rope>() {
    return kTable;
}
template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::inverse_rope>() {
    return kTable;
}

}  // namespace smla
