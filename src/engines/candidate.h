// Candidate tables of the engines. A row is a kernel: a name and a function that plans a call. Only choose()
// selects kernels.
#pragma once

#include "core/device.h"
#include "core/stage.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "core/workspace.h"

#include <smla/context.h>

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace smla {

class PlanCache;

// Kernel names that a context demands, by stage; empty: any. Copies share one list until one is changed.
class Demands {
public:
    const std::string& operator[](size_t stage) const {
        static const std::string none;
        return names_ ? (*names_)[stage] : none;
    }
    std::string& operator[](size_t stage) {
        names_ = names_ ? std::make_shared<Names>(*names_) : std::make_shared<Names>();
        return (*names_)[stage];
    }
    uint64_t hash() const {
        uint64_t out = 0;
        if (names_)
            for (const std::string& name : *names_) out = out * 31 + std::hash<std::string>()(name);
        return out;
    }

private:
    using Names = std::array<std::string, kStageCount>;
    std::shared_ptr<Names> names_;
};

// The processor that runs a call.
struct Processor {
    smla_engine engine = SMLA_ENGINE_CPU;
    smla_isa isa = SMLA_ISA_SCALAR;  // strongest set that kernels may use
    bool slow_bf16_dots = false;     // see core/cpu_features.h
    ThreadPool* pool = nullptr;
    Device* device = &host_device();

    // Returns the requirements on the memory of a call's tensors.
    CheckContext checks() const { return CheckContext::on(device->type(), device->index()); }
    int threads() const { return pool ? pool->threads() : 1; }
};

// Options for all calls of a context.
struct Policy {
    bool batch_invariant = false;
    bool check_indices = false;
    bool records_steps = false;  // GPU: replay repeated steps as graphs (backends/step_recordings.h)
    Demands demanded;

    // Returns false if the context demands another kernel of this stage.
    bool allows(Stage stage, std::string_view kernel) const {
        const std::string& wanted = demanded[size_t(stage)];
        return wanted.empty() || wanted == kernel;
    }
};

// State of one call.
struct Launch {
    smla_stream stream = nullptr;  // stream of a CUDA device
    // Whether the call is independent of the previous one, whose grid is the stream's last, so that a GPU may
    // run both concurrently.
    bool beside = false;
    bool* launched = nullptr;  // set to true when a grid is launched; may be null
    Workspace workspace;
    size_t budget = 0;           // desired maximum workspace of a plan in bytes; 0: unlimited
    PlanCache* plans = nullptr;  // plan cache of the context; null: plan every call
};

// Inputs of a kernel in addition to its arguments.
struct Env : Processor, Policy, Launch {
    Env with_budget(size_t bytes) const {
        Env out = *this;
        out.budget = bytes;
        return out;
    }
};

// A kernel's answer to a call: unsupported, supported although another kernel is better, or supported.
struct Support {
    std::string refusal;  // reason why the kernel cannot run the call; empty if it can
    // Reason why a later kernel of the table is better. It depends on the processor, shapes and cost models,
    // never on a measurement, so that a machine always produces the same bits.
    std::string lower_priority;
};

// Plan of a call, made once from shapes, dtypes, strides, alignment, device and budget, and launched for
// every call of that description.
template <class Args>
struct CallPlan : Support {
    // Bytes of workspace, header included. In a refusal, `scratch` is for smaller calls that this kernel
    // supports, because a workspace sized for this call must serve them.
    size_t scratch = kWorkspaceHeader;
    // Maximum bytes for calls with fewer tokens, if more, because a workspace of this call serves them.
    size_t scratch_of_fewer = 0;
    bool may_be_beside = false;  // whether `launch` supports `Env::beside`: one grid, no scratch
    bool rotates_out = false;    // attend: `launch` rotates the output back; else inverse_rope follows
    // Launches a call; reads only the call's pointers and Env. Null in a refusal.
    std::function<void(const Args&, const Env&)> launch;
    // Resource that the plan could not make because the stream is being captured. Such a plan is not cached
    // and cannot be launched.
    std::string unprepared;
};

template <class Args>
CallPlan<Args> refuse_call(std::string why) {
    CallPlan<Args> plan;
    plan.refusal = std::move(why);
    return plan;
}

template <class Args>
struct Candidate {
    const char* name;
    // Pure function of the environment and the arguments, not of memory behind pointers. Allocates nothing on
    // a device.
    CallPlan<Args> (*plan)(const Args&, const Env&);

    std::string refuse(const Args& args, const Env& env) const { return plan(args, env).refusal; }
    size_t workspace(const Args& args, const Env& env, size_t budget) const {
        return plan(args, env.with_budget(budget)).scratch;
    }
    void run(const Args& args, const Env& env) const {
        plan(args, env.with_budget(env.workspace.budget())).launch(args, env);
    }
};

// A kernel and its answer, a Support.
template <class Kernel, class Answer>
struct Choice {
    const Kernel* kernel = nullptr;  // null if no kernel supports the call
    Answer answer;
};

// Returns the first kernel of the table that supports the call and has no reason for a lower priority, else
// the first that supports it. `ask` returns a kernel's answer. Kernels that the context excludes are skipped.
template <class Kernel, class Ask>
auto choose(std::span<const Kernel> table, Stage stage, const Env& env, Ask ask) {
    using Answer = decltype(ask(table[0]));
    Choice<Kernel, Answer> best;
    for (const Kernel& kernel : table) {
        if (!env.allows(stage, kernel.name)) continue;
        Answer answer = ask(kernel);
        if (!answer.refusal.empty() || (best.kernel && !answer.lower_priority.empty())) continue;
        const bool first_choice = answer.lower_priority.empty();
        best = {&kernel, std::move(answer)};
        if (first_choice) break;
    }
    return best;
}

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

// Each engine defines one specialization per stage.
template <Stage S>
std::span<const Candidate<ArgsOf<S>>> cpu_candidates();
template <Stage S>
std::span<const Candidate<ArgsOf<S>>> reference_candidates();
template <Stage S>
std::span<const Candidate<ArgsOf<S>>> cuda_candidates();

template <Stage S>
std::span<const Candidate<ArgsOf<S>>> candidates(const Env& env) {
    switch (env.engine) {
        case SMLA_ENGINE_REFERENCE: return reference_candidates<S>();
        case SMLA_ENGINE_CUDA: return cuda_candidates<S>();
        default: return cpu_candidates<S>();
    }
}

// Opens a GPU of this machine. Throws if there is none for which this build has code.
std::unique_ptr<Device> open_cuda_device(int32_t index);
// Returns the architectures of this build's CUDA engine, as 10 * major + minor; empty without one.
std::vector<int> cuda_architectures();
// Machine code runs on its own architecture and on later minor versions of the same major one.
bool has_code_for(int capability);

struct Verdict {
    std::string kernel;
    std::string refusal;         // reason why the kernel cannot run the call; empty if it can
    std::string lower_priority;  // reason why another kernel is better; empty if none
    bool chosen = false;         // true for at most one
};

}  // namespace smla
