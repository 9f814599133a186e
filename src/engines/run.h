// Runs a stage: checks the arguments and launches the kernel that choose() selects.
#pragma once

#include "engines/candidate.h"
#include "ops/ops.h"

namespace smla {

// Throws Error: the arguments are wrong, nothing can run them, or the workspace is too small.
// Returns the name of the kernel that ran.
template <Stage S>
const char* run_stage(const ArgsOf<S>& args, const Env& env);

// The two halves of run_stage(). A planned call may be launched again with any arguments of its description.
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
    std::vector<char> key;  // everything that the plan depends on
    std::shared_ptr<const PlannedCall<S>> planned;
    size_t bytes = 0;  // maximum workspace of the plan
};
template <Stage S>
PreparedCall<S> prepare_call(const ArgsOf<S>& args, const Env& env, size_t bytes);
// `args`: the arguments of the preparation with other addresses. Everything else that a plan depends on, such
// as the alignment of addresses, is compared; if it differs, the call is checked and planned as in
// run_stage().
template <Stage S>
const char* run_prepared(const PreparedCall<S>& call, const ArgsOf<S>& args, const Env& env);

// Bytes of workspace that are enough for every allowed candidate. Data pointers are not looked at.
template <Stage S>
size_t stage_workspace(const ArgsOf<S>& args, const Env& env, size_t budget);

// Makes what calls of these shapes need, so that later ones may be captured.
template <Stage S>
void prepare_stage(const ArgsOf<S>& args, const Env& env);

// Refuses what run_stage would, but for the workspace; data pointers are not looked at.
template <Stage S>
void check_call(const ArgsOf<S>& args, const Env& env);

// The answers of all kernels of the table, those of lower priority last, and which kernel run_stage runs.
template <Stage S>
std::vector<Verdict> explain_stage(const ArgsOf<S>& args, const Env& env);

const char* engine_name(smla_engine engine);
std::span<const char* const> engine_names();  // "auto" first
// Whether a context of this engine can be made here; why not, else empty.
std::string why_no_engine(smla_engine engine);

// Names only, for `list` and for checking a demand.
std::vector<std::string> kernel_names(Stage stage, smla_engine engine);

}  // namespace smla
