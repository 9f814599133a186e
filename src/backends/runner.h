// Runs the stages of a step one after the other. The same code runs twice: a pass without memory adds up what
// it takes, then a pass with the caller's workspace runs. Workspace: counters, scratch shared by the stages,
// then activations.
#pragma once

#include "core/tensor.h"
#include "engines/context.h"
#include "engines/run.h"

#include <array>
#include <functional>

namespace smla {

// What ran, for tables and logs.
struct StageRecord {
    const char* kernel = nullptr;
    int64_t calls = 0;
    double seconds = 0;
};
using StageRecords = std::array<StageRecord, kStageCount>;

// Sees what layers usually keep to themselves: for verify and for tests.
struct Tap {
    std::function<void(const char* name, const Tensor& tensor)> tensor;  // "qr", "topk", ...
    std::function<void(const smla_attend_args& args)> attend;            // after the stage ran
    // in the sizing pass: every call's kernels in order of preference, with their refusals
    std::function<void(Stage stage, const std::vector<Verdict>& kernels)> kernels;
};

class Runner {
public:
    // Sizing pass.
    Runner(const Env& env, size_t stage_budget, const Tap* tap)
        : env_(env), budget_(stage_budget), sizing_(true), tap_(tap) {}
    // Running pass: `sized` is the runner of a sizing pass over the same calls.
    Runner(const Env& env, const Runner& sized, Workspace workspace, StageRecords* records);

    size_t total_bytes() const { return kWorkspaceHeader + stage_bytes_ + activation_bytes_; }
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
        out.data = take(size_t(stride) * size_t(dtype_bits(dtype)) / 8);
        out.device_type = env_.device->type();
        out.device_index = env_.device->index();
        return out;
    }

    template <Stage S>
    void run(ArgsOf<S> args) {
        args.struct_size = sizeof args;
        if (sizing_) {
            if (checks_) check_call<S>(args, env_);
            const size_t bytes = stage_workspace<S>(args, env_, budget_) - kWorkspaceHeader;
            stage_bytes_ = std::max(stage_bytes_, round_up(bytes, kCacheLine));
            if (tap_ && tap_->kernels) tap_->kernels(S, explain_stage<S>(args, env_));
            return;
        }
        const char* kernel = nullptr;
        const double seconds = time([&] { kernel = run_stage<S>(args, env_); });
        if constexpr (S == Stage::attend)
            if (tap_ && tap_->attend) show_attend(args);
        if (!records_) return;
        StageRecord& record = (*records_)[size_t(S)];
        record.kernel = kernel;
        record.calls += 1;
        record.seconds += seconds;
    }

    // The sizing pass refuses what the running pass would refuse, before that one's first stage writes. Only
    // where tensors lie where they will: a pass for room alone may see a host's shapes of a GPU's tensors.
    void check_calls() { checks_ = true; }

    // Stages of a GPU take no time in the records unless asked for: each is waited for then.
    void wait_for_each_stage() { waits_ = true; }

    // Not during the sizing pass. What lies on a GPU is copied to the host first.
    void tap(const char* name, const Tensor& tensor) const;
    bool tapped() const { return tap_ && tap_->tensor; }

private:
    // On a GPU 0 unless each stage is waited for.
    double time(const std::function<void()>& work) const {
        const bool gpu = env_.device->type() != SMLA_CPU;
        if (records_ && (!gpu || waits_)) return env_.device->seconds_of(env_.stream, work);
        work();
        return 0;
    }
    void* take(size_t bytes);
    void show_attend(smla_attend_args args) const;

    Env env_;
    size_t budget_ = 0, stage_bytes_ = 0, activation_bytes_ = 0;
    bool sizing_ = false, checks_ = false;
    char* activations_ = nullptr;
    size_t activation_limit_ = 0;
    StageRecords* records_ = nullptr;
    bool waits_ = false;
    const Tap* tap_ = nullptr;
};

}  // namespace smla
