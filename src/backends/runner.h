// Runs the stages of a step one after the other. The same code runs twice: a sizing pass without memory adds
// up the bytes that the step needs, then a running pass uses the caller's workspace for counters, scratch
// shared by all stages, and activations. A context keeps the results of both passes (StepPlan), so a later
// step with the same description only needs the running pass and plans no call. On a GPU, a step that also
// repeats earlier addresses is replayed from a recording.
#pragma once

#include "backends/step_recordings.h"
#include "backends/tap.h"
#include "core/tensor.h"
#include "engines/context.h"
#include "engines/plan_cache.h"
#include "engines/run.h"

namespace smla {

// Plan of all steps with one description: workspace bytes, and the plan of every call in order.
struct StepPlan {
    struct Call {
        Stage stage;
        std::shared_ptr<const void> planned;  // PlannedCall<stage>
    };
    size_t stage_bytes = 0, activation_bytes = 0;
    std::vector<Call> calls;                               // empty after a sizing pass
    bool prepared = true;                                  // whether no call is unprepared (CallPlan)
    std::shared_ptr<StepRecordings> recordings = nullptr;  // null until the context keeps the plan

    size_t total_bytes() const { return kWorkspaceHeader + stage_bytes + activation_bytes; }
};

class Runner {
public:
    // Sizing pass.
    Runner(const Env& env, size_t stage_budget, const Tap* tap)
        : env_(env), budget_(stage_budget), sizing_(true), watch_(tap) {}
    // Running pass. `known` is from a sizing pass over the same calls or from an earlier step, and must
    // outlive the runner.
    Runner(const Env& env, const StepPlan& known, Workspace workspace, StageRecords* records, const Tap* tap);

    size_t total_bytes() const { return kWorkspaceHeader + stage_bytes_ + activation_bytes_; }
    // Returns the pass's sizes; a running pass also returns its calls.
    StepPlan plan() const {
        return {.stage_bytes = stage_bytes_,
                .activation_bytes = activation_bytes_,
                .calls = calls_,
                .prepared = prepared_};
    }
    bool sizing() const { return sizing_; }
    const Env& env() const { return env_; }

    template <size_t N>
    Tensor activation(smla_dtype dtype, const int64_t (&shape)[N]) {
        static_assert(N <= 4);
        Tensor out{};
        out.dtype = dtype;
        out.ndim = int32_t(N);
        int64_t stride = 1;
        for (int i = int(N) - 1; i >= 0; --i) {
            out.shape[i] = shape[i];
            out.stride_elems[i] = stride;
            stride *= shape[i];
        }
        return placed_at(out, take(size_t(stride) * size_t(dtype_bits(dtype)) / 8), *env_.device);
    }

    template <Stage S>
    void run(ArgsOf<S> args) {
        run_one<S>(args, false);
    }
    // Adds a call to the group of the previous call. No call of a group reads or writes what another one
    // writes, so a GPU may run the group at the same time.
    template <Stage S>
    void beside(ArgsOf<S> args) {
        run_one<S>(args, true);
    }
    // Makes the next call wait for all earlier calls, whose results it may need.
    void wait_for_calls() { launched_ = false; }

    // Makes a sizing pass check every call, so that an error is found before the first stage writes. Passes
    // that only compute sizes must not call this, because tensors of a GPU's step may then be shapes on the
    // host.
    void check_calls() { checks_ = true; }

    // Makes a GPU wait for each stage and record its time; otherwise GPU records have no times.
    void wait_for_each_stage() { waits_ = true; }

    // Sets the name under which the watch shows the entries of the next compress.
    void name_entries(const char* name) { watch_.name_entries(name); }
    // Returns whether an observer reads tensors.
    bool taps() const { return watch_.sees_tensors(); }
    // Shows a tensor that is not an argument of a watched stage.
    void tap(const char* name, const Tensor& tensor) const { watch_.show(*this, name, tensor); }

private:
    template <Stage S>
    void run_one(ArgsOf<S>& args, bool beside) {
        args.struct_size = sizeof args;
        watch_.before<S>(*this, args);
        if (sizing_) size<S>(args);
        else call<S>(args, beside && launched_);
        watch_.after<S>(*this, args);
    }
    template <Stage S>
    void size(const ArgsOf<S>& args) {
        if (checks_) check_call<S>(args, env_);
        const size_t bytes = stage_workspace<S>(args, env_, budget_) - kWorkspaceHeader;
        stage_bytes_ = std::max(stage_bytes_, round_up(bytes, kCacheLine));
        if (watch_.tap() && watch_.tap()->kernels) watch_.tap()->kernels(S, explain_stage<S>(args, env_));
    }
    template <Stage S>
    void call(const ArgsOf<S>& args, bool beside) {
        const PlannedCall<S>& planned = next_call<S>(args);
        const char* kernel = nullptr;
        launched_ = false;
        env_.beside = beside;
        env_.launched = &launched_;
        const double seconds = time([&] { kernel = launch_stage<S>(planned, args, env_); });
        if (!records_) return;
        StageRecord& record = (*records_)[size_t(S)];
        record.kernel = kernel;
        record.calls += 1;
        record.seconds += seconds;
    }
    template <Stage S>
    const PlannedCall<S>& next_call(const ArgsOf<S>& args) {
        if (known_ && !known_->calls.empty()) {
            const bool same = next_ < known_->calls.size() && known_->calls[next_].stage == S;
            if (!same)
                fail(SMLA_INTERNAL, "step", std::string(stage_name(S)),
                     "the stages of the step that was planned");
            return *static_cast<const PlannedCall<S>*>(known_->calls[next_++].planned.get());
        }
        const auto planned = plan_stage<S>(args, env_);
        prepared_ = prepared_ && planned->plan.unprepared.empty();
        calls_.push_back({S, planned});
        return *planned;
    }
    // Returns the seconds of `work`; on a GPU 0, unless waits_ is set.
    template <class Work>
    double time(const Work& work) const {
        const bool gpu = env_.device->type() != SMLA_CPU;
        if (records_ && (!gpu || waits_)) return env_.device->seconds_of(env_.stream, work);
        work();
        return 0;
    }
    void* take(size_t bytes);

    Env env_;
    size_t budget_ = 0, stage_bytes_ = 0, activation_bytes_ = 0;
    bool sizing_ = false, checks_ = false;
    const StepPlan* known_ = nullptr;
    size_t next_ = 0;                    // index in known_->calls
    std::vector<StepPlan::Call> calls_;  // planned in this pass, unless known_ has calls
    bool launched_ = false;              // whether the previous call launched GPU work
    bool prepared_ = true;
    char* activations_ = nullptr;
    size_t activation_limit_ = 0;
    StageRecords* records_ = nullptr;
    bool waits_ = false;
    StepWatch watch_;
};

// Replays a step of a known plan; first records it if its addresses have been repeated often enough. Returns
// false if the caller must run the step, as for a stream that is being captured.
template <class Forward>
bool replay_step(const Env& env, const PlanKey& key, const StepPlan& plan, Workspace workspace,
                 StageRecords* records, const Forward& forward) {
    const StepRecordings::Addresses addresses = key.addresses();
    if (!env.records_steps || addresses.empty() || plan.calls.size() < StepRecordings::kLeastCalls)
        return false;
    if (workspace.bytes < plan.total_bytes() || env.device->capturing(env.stream)) return false;
    StepRecordings& recordings = *plan.recordings;
    if (recordings.replay(addresses, env.stream, records)) return true;
    if (!recordings.due(addresses)) return false;
    StageRecords ran{};
    recordings.keep(addresses, env.device->record([&](smla_stream stream) {
        Env recorded = env;
        recorded.stream = stream;
        Runner run(recorded, plan, workspace, &ran, nullptr);
        forward(run);
    }),
                    ran);
    return recordings.replay(addresses, env.stream, records);
}

// Runs a step, whose stages forward(runner) calls one after the other. With a key, the context keeps the
// step's plan; with a null key, every step is planned.
template <class Forward>
void run_step(const Env& env, const PlanKey* key, size_t stage_budget, Workspace workspace,
              StageRecords* records, const Tap* tap, const Forward& forward) {
    const bool keeps = key && env.plans && !tap;
    auto kept = keeps ? std::static_pointer_cast<const StepPlan>(env.plans->find(*key)) : nullptr;
    const bool planned = kept != nullptr;
    if (planned && replay_step(env, *key, *kept, workspace, records, forward)) return;
    if (!planned) {
        Runner sizing(env, stage_budget, tap);
        sizing.check_calls();
        forward(sizing);
        kept = std::make_shared<const StepPlan>(sizing.plan());
    }
    Runner run(env, *kept, workspace, records, tap);
    forward(run);
    if (!keeps || planned || !run.plan().prepared) return;
    StepPlan plan = run.plan();
    plan.recordings = std::make_shared<StepRecordings>();
    env.plans->keep(*key, std::make_shared<const StepPlan>(std::move(plan)));
}

}  // namespace smla
