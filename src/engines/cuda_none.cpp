// Replaces the CUDA engine in a build without it.
#include "engines/candidate.h"

namespace smla {

std::unique_ptr<Device> open_cuda_device(int32_t) {
    fail(SMLA_UNSUPPORTED, "args.engine", "this build has no CUDA engine; build one with cmake --preset cuda",
         "");
}

std::vector<int> cuda_architectures() { return {}; }

#define SMLA_NO_KERNELS(name, args)                                   \
    template <>                                                       \
    std::span<const Candidate<args>> cuda_candidates<Stage::name>() { \
        return {};                                                    \
    }
SMLA_STAGES(SMLA_NO_KERNELS)
#undef SMLA_NO_KERNELS

}  // namespace smla
