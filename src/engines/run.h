// Runs a stage: checks the arguments and launches the kernel that choose() selects.
#pragma once

#include "engines/candidate.h"
#include "ops/ops.h"

namespace smla {

// Returns the name of the kernel that ran. Throws Error if the arguments are wrong, no kernel supports them,
// or the workspace is too small.
template <Stage S>
const char* run_stage(const ArgsOf<S>& args, const Env& env);

// The two halves of run_stage(). A planned call runs any arguments of its description.
template <Stage S>
struct PlannedCall {
    const Candidate<ArgsOf<S>>* kernel = nullptr;
    CallPlan<ArgsOf<S>> plan;
};
template <Stage S>
std::shared_ptr<const PlannedCall<S>> plan_stage(const ArgsOf<S>& args, const Env& env);
template <Stage S>
const char* launch_stage(const PlannedCall<S>& call, const ArgsOf<S>& args, const Env& env);

// A call that is planned once and launched with other addresses.
template <Stage S>
struct PreparedCall {
    std::vector<char> key;  // values on which the plan depends
    std::shared_ptr<const PlannedCall<S>> planned;
    size_t bytes = 0;  // maximum workspace of the plan
};
template <Stage S>
PreparedCall<S> prepare_call(const ArgsOf<S>& args, const Env& env, size_t bytes);
// Launches a prepared call. `args` differs from the prepared arguments in its addresses. Everything else that
// a plan depends on, such as the alignment of addresses, is compared; if it differs, the call is checked and
// planned as in run_stage().
template <Stage S>
const char* run_prepared(const PreparedCall<S>& call, const ArgsOf<S>& args, const Env& env);

// Returns the bytes of workspace for every allowed candidate. Ignores data pointers.
template <Stage S>
size_t stage_workspace(const ArgsOf<S>& args, const Env& env, size_t budget);

// Makes what calls of these shapes need, so that later calls may be captured.
template <Stage S>
void prepare_stage(const ArgsOf<S>& args, const Env& env);

// Throws the errors of run_stage(), except for the workspace. Ignores data pointers.
template <Stage S>
void check_call(const ArgsOf<S>& args, const Env& env);

// Returns the answers of all kernels of the table, lower priorities last, and the one that run_stage() runs.
template <Stage S>
std::vector<Verdict> explain_stage(const ArgsOf<S>& args, const Env& env);

const char* engine_name(smla_engine engine);
std::span<const char* const> engine_names();  // "auto" first
// Returns why a context of this engine cannot be made here; empty if it can.
std::string why_no_engine(smla_engine engine);

// Returns names, for `list` and for checks of demands.
std::vector<std::string> kernel_names(Stage stage, smla_engine engine);

}  // namespace smla
