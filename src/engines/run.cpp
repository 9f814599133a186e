#include "engines/run.h"

#include "core/shapes_only.h"
#include "engines/error_word.h"
#include "ops/check_data.h"
#include "ops/own_memory.h"

#include <algorithm>

namespace smla {

namespace {

// The rule of dispatch: the first that the demand leaves and that does not refuse; null: none, for `reasons`.
template <Stage S>
const Candidate<ArgsOf<S>>* first_that_runs(const ArgsOf<S>& args, const Env& env, std::string& reasons) {
    for (const auto& candidate : candidates<S>(env)) {
        if (!env.allows(S, candidate.name)) continue;
        const std::string refusal = candidate.refuse(args, env);
        if (refusal.empty()) return &candidate;
        reasons += (reasons.empty() ? "" : "; ") + std::string(candidate.name) + ": " + refusal;
    }
    return nullptr;
}

template <Stage S>
const Candidate<ArgsOf<S>>& choose(const ArgsOf<S>& args, const Env& env) {
    std::string reasons;
    if (const auto* found = first_that_runs<S>(args, env, reasons)) return *found;
    if (reasons.empty()) reasons = text("no kernel named ", env.demanded[size_t(S)]);
    fail(SMLA_UNSUPPORTED, std::string(stage_name(S)), reasons, "a kernel that can run these arguments");
}

}  // namespace

template <Stage S>
const char* run_stage(const ArgsOf<S>& args, const Env& env) {
    const ExpectDevice expected(env.device->type(), env.device->index());
    OpOf<S>::check(args);
    check_own_memory(args, env.workspace);
    const auto& kernel = choose<S>(args, env);
    const size_t needed = kernel.workspace(args, env, env.workspace.budget());
    if (needed > env.workspace.bytes && needed > kWorkspaceHeader)
        fail(SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes", text(env.workspace.bytes),
             text("at least ", needed));
    Device::Scope scope(*env.device);
    if constexpr (HasIndices<ArgsOf<S>>)
        if (env.check_indices) note_bad_value(index_scan(args), S, env);
    kernel.run(args, env);
    return kernel.name;
}

template <Stage S>
size_t stage_workspace(const ArgsOf<S>& args, const Env& env, size_t budget) {
    size_t bytes = kWorkspaceHeader;
    for (const auto& candidate : candidates<S>(env))
        if (env.allows(S, candidate.name) && candidate.refuse(args, env).empty())
            bytes = std::max(bytes, candidate.workspace(args, env, budget));
    return bytes;
}

template <Stage S>
void check_call(const ArgsOf<S>& args, const Env& env) {
    const ExpectDevice expected(env.device->type(), env.device->index());
    const ShapesOnly no_memory;
    OpOf<S>::check(args);
    choose<S>(args, env);
}

template <Stage S>
std::vector<Verdict> explain_stage(const ArgsOf<S>& args, const Env& env) {
    std::vector<Verdict> out;
    std::string reasons;
    const auto* chosen = first_that_runs<S>(args, env, reasons);
    for (const auto& candidate : candidates<S>(env))
        out.push_back({candidate.name, candidate.refuse(args, env), &candidate == chosen});
    return out;
}

namespace {
constexpr const char* kEngineNames[] = {"auto", "reference", "cpu", "cuda_mma"};
}

std::span<const char* const> engine_names() { return kEngineNames; }
const char* engine_name(smla_engine engine) { return kEngineNames[engine]; }

std::string why_no_engine(smla_engine engine) {
    if (engine != SMLA_ENGINE_CUDA_MMA) return "";
    try {
        open_cuda_device(0);
        return "";
    } catch (const Error& error) {
        return error.got + "; wanted " + error.wanted;
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
    switch (stage) {
#define SMLA_NAMES(stage_id, args)                                                                       \
    case Stage::stage_id:                                                                                \
        for (const auto& candidate : candidates<Stage::stage_id>(env)) out.emplace_back(candidate.name); \
        break;
        SMLA_STAGES(SMLA_NAMES)
#undef SMLA_NAMES
    }
    return out;
}

#define SMLA_INSTANTIATE(name, args)                                               \
    template const char* run_stage<Stage::name>(const args&, const Env&);          \
    template size_t stage_workspace<Stage::name>(const args&, const Env&, size_t); \
    template void check_call<Stage::name>(const args&, const Env&);                \
    template std::vector<Verdict> explain_stage<Stage::name>(const args&, const Env&);
SMLA_STAGES(SMLA_INSTANTIATE)
#undef SMLA_INSTANTIATE

}  // namespace smla
