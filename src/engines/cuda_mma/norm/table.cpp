#include "engines/cuda_mma/candidates.h"
#include "engines/cuda_mma/norm/norm.h"

namespace smla {

namespace {
using Args = smla_norm_args;
std::string refuse(const Args& args, const Env&) {
    const int64_t rows = args.x.shape[0] * args.x.shape[1];
    return rows > INT32_MAX ? text(rows, " rows: 2^31 or more") : refuse_f64(args);
}

constexpr Candidate<Args> kTable[] = {
    {.name = "cuda_mma_generic", .refuse = refuse, .workspace = no_scratch<Args>, .run = run_cuda_norm},
};
}  // namespace

template <>
std::span<const Candidate<Args>> cuda_mma_candidates<Stage::norm>() {
    return kTable;
}

}  // namespace smla
