#include "engines/cuda_mma/merge/run.h"

namespace smla {

template <>
std::span<const Candidate<smla_merge_args>> cuda_mma_candidates<Stage::merge>() {
    using Args = smla_merge_args;
    static constexpr Candidate<Args> kTable[] = {
        {.name = "cuda_mma_generic",
         .refuse =
             [](const Args& args, const Env&) {
                 return std::string(args.partials.dtype == SMLA_F64 ? "f64 runs on the reference engine"
                                                                    : "");
             },
         .workspace = [](const Args&, const Env&, size_t) { return kWorkspaceHeader; },
         .run = cuda_merge::run_generic},
    };
    return kTable;
}

}  // namespace smla
