#include "engines/run.h"

#include "core/interrupt.h"
#include "core/message.h"
#include "engines/error_word.h"
#include "engines/plan_cache.h"
#include "ops/attend/attend.h"
#include "ops/check_data.h"

#include <algorithm>

namespace smla {

namespace {

template <Stage S>
PlannedCall<S> choose_kernel(const ArgsOf<S>& args, const Env& env) {
    auto [kernel, plan] =
        choose(candidates<S>(env), S, env, [&](const auto& candidate) { return candidate.plan(args, env); });
    return {kernel, std::move(plan)};
}

template <Stage S>
PlannedCall<S> choose_or_fail(const ArgsOf<S>& args, const Env& env) {
    PlannedCall<S> chosen = choose_kernel<S>(args, env);
    if (chosen.kernel) return chosen;
    // Reports the last kernel of the table, which is the most general one.
    const char* last = nullptr;
    std::string reason;
    bool same = true;  // all kernels have this reason
    for (const auto& candidate : candidates<S>(env)) {
        if (!env.allows(S, candidate.name)) continue;
        std::string refusal = candidate.refuse(args, env);
        same = same && (!last || refusal == reason);
        last = candidate.name;
        reason = std::move(refusal);
    }
    std::string why;
    if (!last) why = text("this engine has no kernel ", env.demanded[size_t(S)]);
    else if (!env.demanded[size_t(S)].empty()) why = text(last, " does not support this call: ", reason);
    else if (same) why = text("no kernel supports this call: ", reason);
    else
        why = text("no kernel supports this call; ", last, ": ", reason,
                   " (smla_explain_stage lists the reasons of all kernels)");
    fail(SMLA_UNSUPPORTED, std::string(stage_name(S)), why, "");
}

// Returns make() or its earlier result for a call of this description. Unprepared plans are not cached.
template <class Kept, Stage S, class Make>
std::shared_ptr<const Kept> remembered(PlanUse use, size_t budget, const ArgsOf<S>& args, const Env& env,
                                       Make make) {
    if (!env.plans) return std::make_shared<const Kept>(make());
    PlanKey key(use, uint64_t(S), budget, env);
    key.add(args, fields_of<ArgsOf<S>>());
    if (auto found = env.plans->find(key)) return std::static_pointer_cast<const Kept>(found);
    auto made = std::make_shared<const Kept>(make());
    bool keeps = true;
    if constexpr (requires { made->plan.unprepared; }) keeps = made->plan.unprepared.empty();
    if (keeps) env.plans->keep(key, made);
    return made;
}

template <Stage S>
void refuse_unprepared(const PlannedCall<S>& call) {
    if (!call.plan.unprepared.empty())
        fail(SMLA_UNSUPPORTED, "args", call.plan.unprepared,
             "shapes that were prepared, sized or run before the capture");
}

// Runs inverse_rope if the kernel of attend does not rotate the output.
template <Stage S>
void launch_rest(const PlannedCall<S>& call, const ArgsOf<S>& args, const Env& env) {
    if constexpr (S == Stage::attend) {
        if (call.plan.rotates_out || !present(args.out_positions)) return;
        Env behind = env;
        behind.beside = false;
        run_stage<Stage::inverse_rope>(rotation_of_out(args), behind);
    }
}

}  // namespace

template <Stage S>
std::shared_ptr<const PlannedCall<S>> plan_stage(const ArgsOf<S>& args, const Env& env) {
    const size_t budget = env.workspace.budget();
    return remembered<PlannedCall<S>, S>(PlanUse::run, budget, args, env, [&] {
        OpOf<S>::check(args, env.checks());
        return choose_or_fail<S>(args, env.with_budget(budget));
    });
}

template <Stage S>
const char* launch_stage(const PlannedCall<S>& call, const ArgsOf<S>& args, const Env& env) {
    check_own_memory(args, env.workspace);
    const size_t needed = call.plan.scratch;
    if (needed > env.workspace.bytes && needed > kWorkspaceHeader)
        fail(SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes", text(env.workspace.bytes),
             text("at least ", needed));
    refuse_unprepared(call);
    if (env.device->type() == SMLA_CPU) stop_point();
    Device::Scope scope(*env.device);
    if constexpr (HasIndices<ArgsOf<S>>)
        if (env.check_indices) note_bad_value(index_scan(args), S, env);
    // Calls that scan their lists share the error word.
    const bool scans = env.check_indices && HasIndices<ArgsOf<S>>;
    if (env.beside && (scans || !call.plan.may_be_beside)) {
        Env alone = env;
        alone.beside = false;
        call.plan.launch(args, alone);
    } else {
        call.plan.launch(args, env);
    }
    launch_rest<S>(call, args, env);
    return call.kernel->name;
}

template <Stage S>
const char* run_stage(const ArgsOf<S>& args, const Env& env) {
    return launch_stage<S>(*plan_stage<S>(args, env), args, env);
}

template <Stage S>
PreparedCall<S> prepare_call(const ArgsOf<S>& args, const Env& env, size_t bytes) {
    Env within = env;
    within.workspace = {nullptr, bytes};
    PreparedCall<S> out{.planned = plan_stage<S>(args, within), .bytes = bytes};
    refuse_unprepared(*out.planned);
    PlanKey key(PlanUse::run, uint64_t(S), bytes, env);
    key.add(args, fields_of<ArgsOf<S>>());
    out.key.assign(key.bytes().begin(), key.bytes().end());
    return out;
}

template <Stage S>
const char* run_prepared(const PreparedCall<S>& call, const ArgsOf<S>& args, const Env& env) {
    PlanKey key(PlanUse::run, uint64_t(S), call.bytes, env);
    key.add(args, fields_of<ArgsOf<S>>());
    if (std::ranges::equal(key.bytes(), call.key)) return launch_stage<S>(*call.planned, args, env);
    Env within = env;
    within.workspace.bytes = std::min(env.workspace.bytes, call.bytes);
    return launch_stage<S>(*plan_stage<S>(args, within), args, env);
}

template <Stage S>
size_t stage_workspace(const ArgsOf<S>& args, const Env& env, size_t budget) {
    return *remembered<size_t, S>(PlanUse::size, budget, args, env, [&] {
        size_t bytes = kWorkspaceHeader;
        for (const auto& candidate : candidates<S>(env)) {
            if (!env.allows(S, candidate.name)) continue;
            const CallPlan<ArgsOf<S>> plan = candidate.plan(args, env.with_budget(budget));
            bytes = std::max({bytes, plan.scratch, plan.scratch_of_fewer});
        }
        return bytes;
    });
}

template <Stage S>
void prepare_stage(const ArgsOf<S>& args, const Env& env) {
    // Workspaces have either enough room for the fastest plan or none.
    for (const size_t budget : {size_t(0), kWorkspaceHeader})
        for (const auto& candidate : candidates<S>(env))
            if (env.allows(S, candidate.name)) candidate.plan(args, env.with_budget(budget));
}

template <Stage S>
void check_call(const ArgsOf<S>& args, const Env& env) {
    remembered<bool, S>(PlanUse::check, 0, args, env, [&] {
        OpOf<S>::check(args, env.checks());
        choose_or_fail<S>(args, env);
        return true;
    });
}

template <Stage S>
std::vector<Verdict> explain_stage(const ArgsOf<S>& args, const Env& env) {
    std::vector<Verdict> out;
    const auto* chosen = choose_kernel<S>(args, env).kernel;
    for (const auto& candidate : candidates<S>(env)) {
        CallPlan<ArgsOf<S>> plan = candidate.plan(args, env);
        out.push_back(
            {candidate.name, std::move(plan.refusal), std::move(plan.lower_priority), &candidate == chosen});
    }
    std::stable_partition(out.begin(), out.end(),
                          [](const Verdict& each) { return each.lower_priority.empty(); });
    return out;
}

namespace {
constexpr const char* kEngineNames[] = {"auto", "reference", "cpu", "cuda"};
}

std::span<const char* const> engine_names() { return kEngineNames; }
const char* engine_name(smla_engine engine) { return kEngineNames[engine]; }

std::string why_no_engine(smla_engine engine) {
    if (engine != SMLA_ENGINE_CUDA) return "";
    try {
        open_cuda_device(0);
        return "";
    } catch (const Error& error) {
        return got_and_wanted(error.got, error.wanted);
    }
}

bool has_code_for(int capability) {
    const std::vector<int> built = cuda_architectures();
    return std::any_of(built.begin(), built.end(),
                       [&](int each) { return each / 10 == capability / 10 && each <= capability; });
}

std::vector<std::string> kernel_names(Stage stage, smla_engine engine) {
    Env env;
    env.engine = engine;
    std::vector<std::string> out;
    with_stage(stage, [&]<Stage S>() {
        for (const auto& candidate : candidates<S>(env)) out.emplace_back(candidate.name);
    });
    return out;
}

#define SMLA_INSTANTIATE(name, args)                                                               \
    template std::shared_ptr<const PlannedCall<Stage::name>> plan_stage<Stage::name>(const args&,  \
                                                                                     const Env&);  \
    template const char* launch_stage<Stage::name>(const PlannedCall<Stage::name>&, const args&,   \
                                                   const Env&);                                    \
    template const char* run_stage<Stage::name>(const args&, const Env&);                          \
    template PreparedCall<Stage::name> prepare_call<Stage::name>(const args&, const Env&, size_t); \
    template const char* run_prepared<Stage::name>(const PreparedCall<Stage::name>&, const args&,  \
                                                   const Env&);                                    \
    template size_t stage_workspace<Stage::name>(const args&, const Env&, size_t);                 \
    template void prepare_stage<Stage::name>(const args&, const Env&);                             \
    template void check_call<Stage::name>(const args&, const Env&);                                \
    template std::vector<Verdict> explain_stage<Stage::name>(const args&, const Env&);
SMLA_STAGES(SMLA_INSTANTIATE)
#undef SMLA_INSTANTIATE

}  // namespace smla
