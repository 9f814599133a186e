// Stands in for the CUDA engine in a build without it.
#include "engines/candidate.h"
#include "engines/cuda/common/hyper_connection.h"
#include "engines/cuda/common/metadata.h"
#include "engines/cuda/common/plan.h"
#include "engines/error_word.h"
#include "engines/staging_buffer.h"

namespace smla {

std::unique_ptr<Device> open_cuda_device(int32_t) {
    fail(SMLA_UNSUPPORTED, "args.engine", "cuda", "a build with the CUDA engine: cmake --preset cuda");
}

std::vector<int> cuda_architectures() { return {}; }

void note_bad_value_on_gpu(const IndexScan&, Stage, const Env&) {
    fail(SMLA_INTERNAL, "engine", "a GPU's call", "none in a build without the CUDA engine");
}
// The functions below are never called: they take a GPU's Device, which this build cannot make.
void build_plan_on_gpu(const PlanJob&, Device&, smla_stream) {
    fail(SMLA_INTERNAL, "plan", "a GPU's", "a build with the CUDA engine");
}
size_t hyper_bytes(int64_t, int64_t, int64_t) { return 0; }
void hyper_connection_on_gpu(HyperStep, const HyperJob&, Device&, smla_stream) {
    fail(SMLA_INTERNAL, "hyper-connections", "a GPU's", "a build with the CUDA engine");
}
std::unique_ptr<StagingBuffer> open_staging_buffer(Device&, size_t) {
    fail(SMLA_INTERNAL, "metadata", "a GPU's", "a build with the CUDA engine");
}
void fill_metadata_on_gpu(const MetadataJob&, Device&, smla_stream) {
    fail(SMLA_INTERNAL, "metadata", "a GPU's", "a build with the CUDA engine");
}
void count_up_on_gpu(const int32_t*, int32_t*, int64_t, int64_t, Device&, smla_stream) {
    fail(SMLA_INTERNAL, "metadata", "a GPU's", "a build with the CUDA engine");
}

#define SMLA_NO_KERNELS(name, args)                                   \
    template <>                                                       \
    std::span<const Candidate<args>> cuda_candidates<Stage::name>() { \
        return {};                                                    \
    }
SMLA_STAGES(SMLA_NO_KERNELS)
#undef SMLA_NO_KERNELS

}  // namespace smla
