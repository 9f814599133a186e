// Observers of a step. The inner step and its stages know nothing of them: a Runner tells a StepWatch of
// every stage before and after it runs.
#pragma once

#include "core/tensor.h"
#include "engines/context.h"
#include "engines/run.h"

#include <functional>

namespace smla {

class Runner;

// What an observer wants to see; for verify and for tests.
struct Tap {
    // A tensor that a layer usually keeps to itself, under its name in the golden files: "qr", "topk", ...
    std::function<void(const char* name, const Tensor& tensor)> tensor;
    // The arguments of attend, after the stage ran.
    std::function<void(const smla_attend_args& args)> attend;
    // In the sizing pass: the kernels of every call in order of preference, with their refusals.
    std::function<void(Stage stage, const std::vector<Verdict>& kernels)> kernels;
};

// Finds the named tensors of one step among the arguments of its stages.
class StepWatch {
public:
    explicit StepWatch(const Tap* tap) : tap_(tap) {}
    const Tap* tap() const { return tap_; }
    bool sees_tensors() const { return tap_ && tap_->tensor; }

    void name_entries(const char* name) { entries_ = name; }
    // Shows a tensor in the running pass. What lies on a GPU is copied to the host first.
    void show(const Runner& run, const char* name, const Tensor& tensor) const;

    // Both passes call these: what they take from the runner's memory has to be sized.
    template <Stage S>
    void before(Runner& run, ArgsOf<S>& args) {
        if constexpr (S == Stage::compress) want_entries(run, args);
    }
    template <Stage S>
    void after(Runner& run, const ArgsOf<S>& args) {
        if constexpr (S == Stage::quant_index_q) show(run, "index_w", args.w_out);
        if constexpr (S == Stage::score_select) show_selection(run, args);
        if constexpr (S == Stage::score_select_blocks) show_selection(run, args);
        if constexpr (S == Stage::compress) show(run, entries_, args.entries);
        if constexpr (S == Stage::absorb) show(run, "q_nope", args.x);
        if constexpr (S == Stage::attend) show_attend(run, args), show_rotated(run, args);
    }

private:
    void want_entries(Runner& run, smla_compress_args& args) const;
    void show_selection(Runner& run, const smla_score_select_args& args) const;
    void show_selection(Runner& run, const smla_score_select_blocks_args& args) const;
    void show_logits(Runner& run, smla_score_args score, int64_t columns) const;
    void show_attend(const Runner& run, smla_attend_args args) const;
    void show_rotated(Runner& run, const smla_attend_args& args) const;

    const Tap* tap_;
    const char* entries_ = "entries";  // what the next compress makes
};

}  // namespace smla
