// A kernel is a row of its engine's candidate table: a name and a function that plans a call. choose() is the
// one rule by which a kernel is selected.
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
    smla_isa isa = SMLA_ISA_SCALAR;  // kernels of stronger sets refuse
    bool slow_bf16_dots = false;     // see core/cpu_features.h
    ThreadPool* pool = nullptr;
    Device* device = &host_device();

    // What calls expect of their tensors.
    CheckContext checks() const { return CheckContext::on(device->type(), device->index()); }
    int threads() const { return pool ? pool->threads() : 1; }
};

// Options for all calls of a context.
struct Policy {
    bool batch_invariant = false;
    bool check_indices = false;
    bool records_steps = false;  // a GPU replays repeated steps as graphs: see backends/step_recordings.h
    Demands demanded;

    // False: the context demands another kernel of this stage.
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
    size_t budget = 0;           // bytes of workspace that a plan should not exceed; 0: as many as are useful
    PlanCache* plans = nullptr;  // plans of the context; null: plan every call
};

// Everything that a kernel may use in addition to its arguments.
struct Env : Processor, Policy, Launch {
    Env with_budget(size_t bytes) const {
        Env out = *this;
        out.budget = bytes;
        return out;
    }
};

// A kernel's answer to a call: unsupported, supported although another kernel is better, or supported.
struct Support {
    std::string refusal;  // why the kernel cannot run the call; empty: it can
    // Why a kernel further down the table is better. Depends on facts of the processor, on shapes and on cost
    // models, never on a measurement, so that a machine always gives the same bits.
    std::string lower_priority;
};

// How a kernel will run a call: made once from shapes, dtypes, strides, alignment, device and budget, then
// launched as often as a call of that description comes.
template <class Args>
struct CallPlan : Support {
    // Bytes of workspace, header included. With a refusal: what smaller calls that this kernel takes need, as
    // a workspace sized for this call must serve them.
    size_t scratch = kWorkspaceHeader;
    // What calls of fewer tokens take at most, where that can be more: a workspace that is sized with this
    // call serves them too.
    size_t scratch_of_fewer = 0;
    bool may_be_beside = false;  // `launch` obeys Env::beside: one grid, no scratch
    bool rotates_out = false;    // attend: `launch` rotates the output back; else inverse_rope follows
    // Reads the call's pointers and its Env; all else was decided. Null with a refusal.
    std::function<void(const Args&, const Env&)> launch;
    // What the plan could not make because the stream is being captured. Such a plan is not cached, and
    // launching it is refused.
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
    // A pure function of the arguments (but for where pointers lead) and the environment. Allocates nothing
    // on a device.
    CallPlan<Args> (*plan)(const Args&, const Env&);

    std::string refuse(const Args& args, const Env& env) const { return plan(args, env).refusal; }
    size_t workspace(const Args& args, const Env& env, size_t budget) const {
        return plan(args, env.with_budget(budget)).scratch;
    }
    void run(const Args& args, const Env& env) const {
        plan(args, env.with_budget(env.workspace.budget())).launch(args, env);
    }
};

// A kernel and its answer, which is a Support.
template <class Kernel, class Answer>
struct Choice {
    const Kernel* kernel = nullptr;  // null: no kernel supports the call
    Answer answer;
};

// The rule of dispatch: the first kernel of the table that supports the call and has no reason for a lower
// priority, else the first that supports it. `ask` returns a kernel's answer. A kernel that the context
// excludes is not asked.
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

// Defined by each engine, one specialisation per stage.
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

// A GPU of this machine; throws where there is none, or none that this build has code for.
std::unique_ptr<Device> open_cuda_device(int32_t index);
// Architectures that this build's CUDA engine is compiled for, as 10 * major + minor; empty without one.
std::vector<int> cuda_architectures();
// Machine code runs on its own architecture and on later minor versions of the same major one.
bool has_code_for(int capability);

struct Verdict {
    std::string kernel;
    std::string refusal;         // why the kernel cannot run the call; empty: it can
    std::string lower_priority;  // why another kernel is better; empty: none is known to be
    bool chosen = false;         // at most one is
};

}  // namespace smla
