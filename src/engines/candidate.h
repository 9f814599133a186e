// A kernel is a row of its engine's candidate table: a name, a reason to refuse, its scratch, its launch. The
// order of the table is the preference; dispatch, explain, the support matrix and the tests all read it.
#pragma once

#include "core/device.h"
#include "core/stage.h"
#include "core/thread_pool.h"
#include "core/workspace.h"

#include <smla/context.h>

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace smla {

// Where a call runs: everything a kernel may use besides its arguments.
struct Env {
    smla_engine engine = SMLA_ENGINE_CPU;
    smla_isa isa = SMLA_ISA_SCALAR;  // kernels of stronger sets refuse
    bool batch_invariant = false;
    bool check_indices = false;
    ThreadPool* pool = nullptr;
    Device* device = &host_device();
    smla_stream stream = nullptr;  // of a CUDA device
    Workspace workspace;
    std::array<std::string, kStageCount> demanded;  // kernel names by stage; empty: any

    int threads() const { return pool ? pool->threads() : 1; }
    // Whether the context's demand leaves this kernel.
    bool allows(Stage stage, std::string_view kernel) const {
        const std::string& wanted = demanded[size_t(stage)];
        return wanted.empty() || wanted == kernel;
    }
};

template <class Args>
struct Candidate {
    const char* name;
    std::string (*refuse)(const Args&, const Env&);  // why not; empty: it can
    // Scratch in bytes from shapes alone, header included: as much as pays, but within `budget` (0: none) if
    // it can.
    size_t (*workspace)(const Args&, const Env&, size_t budget);
    void (*run)(const Args&, const Env&);
};

template <Stage S>
struct ArgsOfStage;
#define SMLA_STAGE_ARGS(name, args)   \
    template <>                       \
    struct ArgsOfStage<Stage::name> { \
        using type = args;            \
    };
SMLA_STAGES(SMLA_STAGE_ARGS)
#undef SMLA_STAGE_ARGS
template <Stage S>
using ArgsOf = typename ArgsOfStage<S>::type;

// Defined by each engine, one specialisation per stage.
template <Stage S>
std::span<const Candidate<ArgsOf<S>>> cpu_candidates();
template <Stage S>
std::span<const Candidate<ArgsOf<S>>> reference_candidates();
template <Stage S>
std::span<const Candidate<ArgsOf<S>>> cuda_mma_candidates();

template <Stage S>
std::span<const Candidate<ArgsOf<S>>> candidates(const Env& env) {
    switch (env.engine) {
        case SMLA_ENGINE_REFERENCE: return reference_candidates<S>();
        case SMLA_ENGINE_CUDA_MMA: return cuda_mma_candidates<S>();
        default: return cpu_candidates<S>();
    }
}

// A GPU of this machine; throws where there is none, or none that this build has code for.
std::unique_ptr<Device> open_cuda_device(int32_t index);
// What the CUDA engines of this build are compiled for, as 10 * major + minor; empty without them.
std::vector<int> cuda_architectures();
// Machine code runs on its own architecture and on later minor versions of the same major one.
bool has_code_for(int capability);

struct Verdict {
    std::string kernel;
    std::string refusal;  // the kernel's own; empty: it could run
    bool chosen = false;  // at most one is
};

}  // namespace smla
